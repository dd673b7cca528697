BEGIN TRANSACTION;
CREATE TABLE applications (
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  manifest_generation TEXT NOT NULL,
  PRIMARY KEY (workspace, application)
) STRICT, WITHOUT ROWID;
INSERT INTO "applications" VALUES('default','orders','man_orders_1');
CREATE TABLE attempt_logs (
  number INTEGER PRIMARY KEY,
  attempt_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  run_id TEXT NOT NULL,
  step_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  attempt_generation INTEGER NOT NULL,
  lines BLOB NOT NULL                 -- JSON array
) STRICT;
CREATE TABLE attempts (
  attempt_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  function TEXT NOT NULL,
  run_id TEXT NOT NULL,
  step_id TEXT NOT NULL,
  phase TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  attempt_generation INTEGER NOT NULL,
  operation_id TEXT NOT NULL,
  state TEXT NOT NULL,
  request_id TEXT,
  instance_id TEXT,
  session_id TEXT,
  release_id TEXT,
  transport TEXT,
  queued_at_ms INTEGER NOT NULL,
  due_at_ms INTEGER NOT NULL,
  authorized_at_ms INTEGER,
  lease_until_ms INTEGER,
  unknown_at_ms INTEGER,
  settled_at_ms INTEGER
) STRICT;
INSERT INTO "attempts" VALUES('att_1','default','orders','fulfil','run_1','charge','forward',1,1,'op_att_1','authorized',NULL,NULL,NULL,NULL,NULL,1000,1000,NULL,NULL,NULL,NULL);
CREATE TABLE event_keys (
  workspace TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  event_id TEXT NOT NULL,
  routing_generation TEXT,
  matched INTEGER NOT NULL,
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;
INSERT INTO "event_keys" VALUES('default','k','print of k','evt_1',NULL,0);
CREATE TABLE events (
  event_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  name TEXT NOT NULL,
  payload BLOB NOT NULL,
  metadata TEXT NOT NULL,             -- JSON object
  received_at_ms INTEGER NOT NULL,
  routing_generation TEXT,
  matched INTEGER NOT NULL,
  fan_out_next INTEGER,
  position INTEGER NOT NULL
) STRICT;
INSERT INTO "events" VALUES('evt_1','default','order.placed',X'7B22746F74616C223A2031327D','{"a":"é","source":"web"}',1000,'rtg_1',1,0,3);
CREATE TABLE history (
  position INTEGER PRIMARY KEY,
  workspace TEXT NOT NULL,
  run_id TEXT,                        -- NULL: an event, a manifest or a release
  at_ms INTEGER NOT NULL,
  records BLOB NOT NULL               -- JSON array
) STRICT;
INSERT INTO "history" VALUES(1,'default',NULL,1,X'5B7B226B696E64223A226D616E69666573745F616374697661746564227D5D');
INSERT INTO "history" VALUES(2,'default',NULL,1000,X'5B7B226B696E64223A2272656C656173655F7365656E227D5D');
INSERT INTO "history" VALUES(3,'default',NULL,1000,X'5B7B226B696E64223A226576656E745F6163636570746564227D5D');
INSERT INTO "history" VALUES(4,'default','run_1',1000,X'5B7B226B696E64223A2272756E5F63726561746564227D5D');
INSERT INTO "history" VALUES(5,'default','run_1',2000,X'5B7B226B696E64223A226D6F766564227D5D');
CREATE TABLE manifests (
  manifest_generation TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  expected_parent TEXT,
  digest TEXT NOT NULL,
  document BLOB NOT NULL,             -- JSON object
  routing_generation TEXT NOT NULL,
  activated_at_ms INTEGER NOT NULL
) STRICT;
INSERT INTO "manifests" VALUES('man_orders_1','default','orders',NULL,'digest 1',X'7B2266756E6374696F6E73223A5B5D7D','rtg_orders_1',1);
CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE obligations (
  child_run_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  obligation BLOB NOT NULL,           -- JSON object
  PRIMARY KEY (child_run_id, kind)
) STRICT, WITHOUT ROWID;
CREATE TABLE operator_commands (
  workspace TEXT NOT NULL,
  key TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  attempt_id TEXT NOT NULL,
  applied_at_ms INTEGER NOT NULL,
  acknowledgement BLOB NOT NULL,      -- JSON object
  PRIMARY KEY (workspace, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE releases (
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  release_id TEXT NOT NULL,
  contract TEXT NOT NULL,             -- JSON object
  first_seen_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL,
  PRIMARY KEY (workspace, application, release_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "releases" VALUES('default','orders','r1','{"functions":[]}',1000,2);
CREATE TABLE routing (
  routing_generation TEXT NOT NULL,
  workspace TEXT NOT NULL,
  expected_parent TEXT,
  content_hash TEXT NOT NULL,
  applications TEXT NOT NULL,         -- JSON object
  activated_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT;
INSERT INTO "routing" VALUES('rtg_orders_1','default',NULL,'hash','{"orders":"man_orders_1"}',1,1);
CREATE TABLE runs (
  run_id TEXT NOT NULL,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  function TEXT NOT NULL,
  event_id TEXT,
  trigger_id TEXT,
  parent_run_id TEXT,
  parent_step_id TEXT,
  manifest_generation TEXT,
  routing_generation TEXT,
  status TEXT NOT NULL,
  outcome TEXT,
  recovery TEXT,
  recovery_reason TEXT,
  stop_reason TEXT,
  stop_requested_at_ms INTEGER,
  deadline_at_ms INTEGER,
  deadline_source TEXT,
  attention TEXT,
  created_at_ms INTEGER NOT NULL,
  ended_at_ms INTEGER,
  wake_at_ms INTEGER,
  steps_declared INTEGER NOT NULL,
  steps_completed INTEGER NOT NULL,
  unwind_pending INTEGER NOT NULL,
  unwind_succeeded INTEGER NOT NULL,
  unwind_failed INTEGER NOT NULL,
  unwind_skipped INTEGER NOT NULL,
  work_queued INTEGER NOT NULL,
  unknown_below_run_id TEXT,          -- carried up from a child, never written by a row of the run's own
  shown_attention TEXT GENERATED ALWAYS AS (coalesce(attention, iif(unknown_below_run_id IS NULL, NULL, 'unknown'))) VIRTUAL
) STRICT;
INSERT INTO "runs" VALUES('run_1','default','orders','fulfil','evt_1','placed',NULL,NULL,'man_1','rtg_1','running',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1000,NULL,0,0,0,0,0,0,0,0,NULL);
CREATE TABLE waits (
  run_id TEXT PRIMARY KEY,
  workspace TEXT NOT NULL,
  application TEXT NOT NULL,
  event_name TEXT NOT NULL,
  shape TEXT NOT NULL,                -- JSON array of metadata keys, in order
  digest BLOB NOT NULL,               -- of the values asked for under them
  step_id TEXT NOT NULL,
  timeout_at_ms INTEGER NOT NULL,
  position INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE workspaces (
  workspace TEXT PRIMARY KEY,
  routing_generation TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "workspaces" VALUES('default','rtg_orders_1');
CREATE INDEX history_by_run ON history (run_id) WHERE run_id IS NOT NULL;
CREATE UNIQUE INDEX runs_by_id ON runs (run_id);
CREATE INDEX runs_by_creation ON runs (workspace, created_at_ms, run_id);
CREATE INDEX runs_by_application ON runs (workspace, application, created_at_ms, run_id);
CREATE INDEX runs_by_function ON runs (workspace, function, created_at_ms, run_id);
CREATE INDEX runs_by_event ON runs (event_id, created_at_ms, run_id) WHERE event_id IS NOT NULL;
CREATE INDEX runs_by_wake ON runs (wake_at_ms, run_id) WHERE wake_at_ms IS NOT NULL;
CREATE INDEX runs_by_status ON runs (workspace, status, created_at_ms, run_id) WHERE status <> 'ended';
CREATE INDEX runs_by_outcome ON runs (workspace, outcome, created_at_ms, run_id) WHERE outcome <> 'succeeded';
CREATE INDEX runs_by_recovery ON runs (workspace, recovery, created_at_ms, run_id) WHERE recovery <> 'not_required';
CREATE INDEX runs_by_attention ON runs (workspace, shown_attention, created_at_ms, run_id) WHERE shown_attention IS NOT NULL;
CREATE INDEX runs_by_end ON runs (workspace, ended_at_ms, run_id) WHERE ended_at_ms IS NOT NULL AND parent_run_id IS NULL;
CREATE INDEX runs_blocked ON runs (workspace, application, function) WHERE status = 'definition_blocked';
CREATE UNIQUE INDEX attempts_by_id ON attempts (attempt_id);
CREATE INDEX attempts_by_queue ON attempts (workspace, queued_at_ms, attempt_id);
CREATE INDEX attempts_queued ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'queued';
CREATE INDEX attempts_authorized ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'authorized';
CREATE INDEX attempts_unknown ON attempts (workspace, queued_at_ms, attempt_id) WHERE state = 'unknown';
CREATE INDEX attempts_unusual ON attempts (workspace, state, queued_at_ms, attempt_id)
  WHERE state NOT IN ('queued', 'authorized', 'unknown', 'succeeded');
CREATE UNIQUE INDEX events_by_id ON events (event_id);
CREATE INDEX events_by_time ON events (workspace, received_at_ms, event_id);
CREATE INDEX events_by_name ON events (workspace, name, received_at_ms, event_id);
CREATE INDEX events_to_expand ON events (event_id) WHERE fan_out_next IS NOT NULL;
CREATE INDEX events_expanding ON events (workspace, name, position) WHERE fan_out_next IS NOT NULL;
CREATE INDEX waits_by_match ON waits (workspace, event_name, shape, digest, position);
CREATE UNIQUE INDEX manifests_by_generation ON manifests (workspace, manifest_generation);
CREATE UNIQUE INDEX routing_by_generation ON routing (workspace, routing_generation);
CREATE INDEX routing_by_position ON routing (workspace, position);
CREATE UNIQUE INDEX attempt_logs_by_attempt ON attempt_logs (attempt_id);
CREATE INDEX attempt_logs_by_run ON attempt_logs (run_id);
COMMIT;
