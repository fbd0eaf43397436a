"""What breaks job queues in real use, a kind of fault a test: how to bring it about, and the outcome to accept."""
