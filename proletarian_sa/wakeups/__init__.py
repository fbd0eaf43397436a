"""How a worker that found nothing hears of new jobs before its next poll.

Inside one process from the commit itself (`announce`, `pending`, `stations`); across processes by PostgreSQL's notifications,
where the tables ask for them (`announce`, `listener`). A wake-up is a hint: it only makes a worker look now, so one too many costs
a poll, and one too few a wait until the next one. `idle` decides how long that is.
"""
