-- The limits that have entries.
CREATE TABLE limits (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stem TEXT NOT NULL UNIQUE,
    rule TEXT NOT NULL,
    limit_name TEXT NOT NULL,
    period_kind TEXT NOT NULL
);

-- The quota of one subject under one limit. Whoever changes its entries, balances or holds locks its row first.
CREATE TABLE accounts (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    limit_id BIGINT NOT NULL REFERENCES limits (id),
    partition SMALLINT NOT NULL,
    subject BYTEA NOT NULL,
    name TEXT,
    UNIQUE (limit_id, subject)
);
CREATE INDEX accounts_by_partition ON accounts (partition);
CREATE INDEX accounts_by_name ON accounts (name) WHERE name IS NOT NULL;

-- Append-only. Times are microseconds since the epoch. Without a foreign key: its check would cost a lookup for each entry.
CREATE TABLE entries (
    account BIGINT NOT NULL,
    time BIGINT NOT NULL,
    period BIGINT NOT NULL,
    amount BIGINT NOT NULL,
    hard_limit BIGINT NOT NULL,
    held BIGINT,
    owner BIGINT,
    expires_at BIGINT,
    forgiven BIGINT,
    kind SMALLINT NOT NULL,
    id BYTEA PRIMARY KEY,
    author TEXT,
    reason TEXT
);
CREATE INDEX entries_by_time ON entries (time);

-- The sums of the entries. `carried` is the debt that the period inherits, after `forgiven` of it. Single entries of the period that are
-- older than `rolled_before` may be gone. Pages keep room for new versions of their rows.
CREATE TABLE balances (
    account BIGINT NOT NULL,
    period BIGINT NOT NULL,
    consumed BIGINT NOT NULL,
    carried BIGINT NOT NULL,
    forgiven BIGINT NOT NULL,
    hard_limit BIGINT NOT NULL,
    rolled_before BIGINT NOT NULL,
    PRIMARY KEY (account, period)
) WITH (fillfactor = 70);

-- Reservations, and their ends, which may arrive first: then `reserved_at` is null.
CREATE TABLE holds (
    account BIGINT NOT NULL,
    owner BIGINT NOT NULL,
    reserved_at BIGINT,
    units BIGINT,
    expires_at BIGINT,
    period BIGINT,
    ended_at BIGINT,
    ended_kind BIGINT,
    cost BIGINT,
    PRIMARY KEY (account, owner)
);
CREATE INDEX holds_by_expiry ON holds (expires_at);
