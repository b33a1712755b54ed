-- Tables and indexes that were added to version 1 of the journal. An older Watchkeeper ignores them, so the version is
-- unchanged; they are created if they are missing.
CREATE TABLE IF NOT EXISTS work_order (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  expires_at TEXT GENERATED ALWAYS AS (json_extract(body, '$.order.expires_at')) VIRTUAL,
  is_answered INTEGER GENERATED ALWAYS AS (json_extract(body, '$.receipt') IS NOT NULL) VIRTUAL
) STRICT;
CREATE INDEX IF NOT EXISTS work_order_by_time ON work_order (is_answered, expires_at);

CREATE TABLE IF NOT EXISTS silence (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  ends_at TEXT GENERATED ALWAYS AS (json_extract(body, '$.ends_at')) VIRTUAL
) STRICT;

CREATE TABLE IF NOT EXISTS notice (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  incident TEXT GENERATED ALWAYS AS (json_extract(body, '$.incident')) VIRTUAL,
  state TEXT GENERATED ALWAYS AS (json_extract(body, '$.state')) VIRTUAL
) STRICT;
CREATE INDEX IF NOT EXISTS notice_by_incident ON notice (incident);

CREATE INDEX IF NOT EXISTS incident_open_by_node ON incident (json_extract(body, '$.place.node')) WHERE state <> 'resolved';

-- Pages list open incidents often; without this index they scan all stored incidents.
CREATE INDEX IF NOT EXISTS incident_open_by_time ON incident (opened_at) WHERE state <> 'resolved';
CREATE INDEX IF NOT EXISTS entry_by_kind ON entry (kind, seq);

CREATE TABLE IF NOT EXISTS repair (
  key TEXT PRIMARY KEY,
  seq INTEGER NOT NULL,
  body TEXT NOT NULL,
  incident TEXT GENERATED ALWAYS AS (json_extract(body, '$.incident')) VIRTUAL,
  cluster TEXT GENERATED ALWAYS AS (json_extract(body, '$.node.cluster')) VIRTUAL,
  node TEXT GENERATED ALWAYS AS (json_extract(body, '$.node.node')) VIRTUAL,
  is_alive INTEGER GENERATED ALWAYS AS (
    json_extract(body, '$.state') NOT IN ('done', 'failed', 'rolled_back', 'rejected')
    OR (json_extract(body, '$.state') = 'failed' AND json_extract(body, '$.has_cordon'))
  ) VIRTUAL
) STRICT;
CREATE INDEX IF NOT EXISTS repair_by_incident ON repair (incident, seq);
CREATE INDEX IF NOT EXISTS repair_by_node ON repair (node, seq);
CREATE INDEX IF NOT EXISTS repair_alive ON repair (is_alive, seq);

CREATE TABLE IF NOT EXISTS repair_switch (key TEXT PRIMARY KEY, seq INTEGER NOT NULL, body TEXT NOT NULL) STRICT;
