-- The journal, version 1. `entry` is append-only and authoritative; every other table is a projection of it, written in
-- the same transaction, and each row has the number of the entry that last wrote it. Columns for searching are computed
-- from `body`, so that they always match it.
CREATE TABLE entry (
  seq INTEGER PRIMARY KEY,
  at TEXT NOT NULL,
  actor TEXT NOT NULL,
  kind TEXT NOT NULL,
  subject TEXT NOT NULL,
  body TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  prev TEXT NOT NULL,
  hash TEXT NOT NULL
) STRICT;
CREATE INDEX entry_by_subject ON entry (subject, seq);

CREATE TABLE number (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO number VALUES ('epoch', 0), ('incident', 0);

CREATE TABLE event (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  at TEXT GENERATED ALWAYS AS (json_extract(body, '$.at')) VIRTUAL,
  cluster TEXT GENERATED ALWAYS AS (json_extract(body, '$.place.cluster')) VIRTUAL,
  node TEXT GENERATED ALWAYS AS (json_extract(body, '$.place.node')) VIRTUAL
) STRICT;
CREATE INDEX event_by_node ON event (cluster, node, at);
CREATE INDEX event_by_entry ON event (seq);

CREATE TABLE incident (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  state TEXT GENERATED ALWAYS AS (json_extract(body, '$.state')) VIRTUAL,
  opened_at TEXT GENERATED ALWAYS AS (json_extract(body, '$.opened_at')) VIRTUAL,
  version INTEGER GENERATED ALWAYS AS (json_extract(body, '$.version')) VIRTUAL
) STRICT;
CREATE INDEX incident_by_state ON incident (state, opened_at);
CREATE INDEX incident_by_time ON incident (opened_at);

CREATE TABLE diagnosis (key TEXT PRIMARY KEY, seq INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
CREATE TABLE plan (key TEXT PRIMARY KEY, seq INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
CREATE TABLE alert (key TEXT PRIMARY KEY, seq INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
