-- The journal, version 1, in PostgreSQL: the tables of journal_schema.sql and journal_added.sql, and the leader's lease.
-- Texts are compared by their bytes, as in SQLite, in every locale of the database. Later additions are in
-- journal_postgres_added.sql.
CREATE TABLE leader (
  is_only BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (is_only),
  schema_version INTEGER NOT NULL,
  epoch BIGINT NOT NULL,
  holder TEXT NOT NULL,
  url TEXT NOT NULL,
  expires_at TIMESTAMPTZ NOT NULL
);
INSERT INTO leader VALUES (TRUE, 1, 0, '', '', 'epoch');

-- SQLite's function. PostgreSQL's texts cannot contain NUL, so an escaped NUL reads as U+FFFD; `body` is not changed.
CREATE FUNCTION json_extract(body TEXT, path TEXT) RETURNS TEXT IMMUTABLE PARALLEL SAFE LANGUAGE SQL AS
  $$ SELECT replace(body, '\u0000', '\ufffd')::jsonb #>> string_to_array(substr(path, 3), '.') $$;

CREATE TABLE entry (
  seq BIGINT PRIMARY KEY,
  at TEXT COLLATE "C" NOT NULL,
  actor TEXT NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  body TEXT NOT NULL,
  epoch BIGINT NOT NULL,
  prev TEXT NOT NULL,
  hash TEXT NOT NULL
);
CREATE INDEX entry_by_subject ON entry (subject, seq);
CREATE INDEX entry_by_kind ON entry (kind, seq);

CREATE TABLE number (name TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO number VALUES ('incident', 0);

CREATE TABLE event (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  at TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(body, '$.at')) STORED,
  cluster TEXT GENERATED ALWAYS AS (json_extract(body, '$.place.cluster')) STORED,
  node TEXT GENERATED ALWAYS AS (json_extract(body, '$.place.node')) STORED
);
CREATE INDEX event_by_node ON event (cluster, node, at);
CREATE INDEX event_by_entry ON event (seq);

CREATE TABLE incident (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  state TEXT GENERATED ALWAYS AS (json_extract(body, '$.state')) STORED,
  opened_at TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(body, '$.opened_at')) STORED,
  version BIGINT GENERATED ALWAYS AS (json_extract(body, '$.version')::BIGINT) STORED
);
CREATE INDEX incident_by_time ON incident (opened_at);
CREATE INDEX incident_open_by_node ON incident (json_extract(body, '$.place.node')) WHERE state <> 'resolved';

CREATE TABLE diagnosis (key TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL, body TEXT NOT NULL);
CREATE TABLE plan (key TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL, body TEXT NOT NULL);
CREATE TABLE alert (key TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL, body TEXT NOT NULL);
CREATE TABLE repair_switch (key TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL, body TEXT NOT NULL);

CREATE TABLE work_order (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  expires_at TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(body, '$.order.expires_at')) STORED,
  is_answered INTEGER GENERATED ALWAYS AS ((json_extract(body, '$.receipt') IS NOT NULL)::INTEGER) STORED
);
CREATE INDEX work_order_by_time ON work_order (is_answered, expires_at);

CREATE TABLE silence (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  ends_at TEXT COLLATE "C" GENERATED ALWAYS AS (json_extract(body, '$.ends_at')) STORED
);

CREATE TABLE notice (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  incident TEXT GENERATED ALWAYS AS (json_extract(body, '$.incident')) STORED,
  state TEXT GENERATED ALWAYS AS (json_extract(body, '$.state')) STORED
);

CREATE TABLE repair (
  key TEXT COLLATE "C" PRIMARY KEY,
  seq BIGINT NOT NULL,
  body TEXT NOT NULL,
  incident TEXT GENERATED ALWAYS AS (json_extract(body, '$.incident')) STORED,
  cluster TEXT GENERATED ALWAYS AS (json_extract(body, '$.node.cluster')) STORED,
  node TEXT GENERATED ALWAYS AS (json_extract(body, '$.node.node')) STORED,
  is_alive INTEGER GENERATED ALWAYS AS ((
    json_extract(body, '$.state') NOT IN ('done', 'failed', 'rolled_back', 'rejected')
    OR (json_extract(body, '$.state') = 'failed' AND json_extract(body, '$.has_cordon') = 'true')
  )::INTEGER) STORED
);
CREATE INDEX repair_by_incident ON repair (incident, seq);
CREATE INDEX repair_by_node ON repair (node, seq);
CREATE INDEX repair_alive ON repair (is_alive, seq);
