"""Programs that tests run in processes of their own: elsewhere in the world, or under another clock."""
