-- The limits that have entries.
CREATE TABLE limits (
    id INTEGER PRIMARY KEY,
    stem TEXT NOT NULL UNIQUE,
    rule TEXT NOT NULL,
    limit_name TEXT NOT NULL,
    period_kind TEXT NOT NULL
) STRICT;

-- The quota of one subject under one limit.
CREATE TABLE accounts (
    id INTEGER PRIMARY KEY,
    limit_id INTEGER NOT NULL REFERENCES limits (id),
    partition INTEGER NOT NULL,
    subject BLOB NOT NULL,
    name TEXT,
    UNIQUE (limit_id, subject)
) STRICT;
CREATE INDEX accounts_by_partition ON accounts (partition);
CREATE INDEX accounts_by_name ON accounts (name) WHERE name IS NOT NULL;

-- Append-only. Times are microseconds since the epoch. Ordered by id, so that the index of the ids is the table.
CREATE TABLE entries (
    id BLOB NOT NULL PRIMARY KEY,
    account INTEGER NOT NULL,
    time INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    period INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    hard_limit INTEGER NOT NULL,
    held INTEGER,
    owner INTEGER,
    expires_at INTEGER,
    forgiven INTEGER,
    author TEXT,
    reason TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_time ON entries (time);

-- The sums of the entries. `carried` is the debt that the period inherits, after `forgiven` of it. Single entries of the period that are
-- older than `rolled_before` may be gone.
CREATE TABLE balances (
    account INTEGER NOT NULL,
    period INTEGER NOT NULL,
    consumed INTEGER NOT NULL,
    carried INTEGER NOT NULL,
    forgiven INTEGER NOT NULL,
    hard_limit INTEGER NOT NULL,
    rolled_before INTEGER NOT NULL,
    PRIMARY KEY (account, period)
) STRICT, WITHOUT ROWID;

-- Reservations, and their ends, which may arrive first: then `reserved_at` is null.
CREATE TABLE holds (
    account INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    reserved_at INTEGER,
    units INTEGER,
    expires_at INTEGER,
    period INTEGER,
    ended_at INTEGER,
    ended_kind INTEGER,
    cost INTEGER,
    PRIMARY KEY (account, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_by_expiry ON holds (expires_at);
