-- What the secret, under which subjects are hashed, makes of a fixed text and of the namespace: another secret finds no account.
CREATE TABLE secret_fingerprint (
    only_row SMALLINT NOT NULL PRIMARY KEY CHECK (only_row = 1),
    fingerprint BIGINT NOT NULL
);
