PRAGMA user_version=0;
BEGIN TRANSACTION;
CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        letter TEXT NOT NULL,
        title TEXT NOT NULL,
        system TEXT NOT NULL,
        params TEXT NOT NULL,
        draft TEXT NOT NULL DEFAULT '',
        created_at REAL NOT NULL,
        closed_at REAL
    );
INSERT INTO "chats" VALUES(1,'a','','Answer briefly.','{"temperature":0.4,"top_p":0.9,"seed":7,"stop":["END"]}','',1700000000.0,NULL);
INSERT INTO "chats" VALUES(2,'b','A fork','Answer briefly.','{"temperature":0.4,"top_p":0.9,"seed":7,"stop":["END"]}','not sent yet',1700000480.0,NULL);
INSERT INTO "chats" VALUES(3,'c','closed one','','{}','',1700000540.0,1700000660.0);
CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
        at REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('done', 'streaming', 'stopped', 'failed')),
        writer TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        stats TEXT,
        params TEXT,
        text TEXT NOT NULL,
        reasoning TEXT NOT NULL DEFAULT ''
    , attachments TEXT);
INSERT INTO "messages" VALUES(1,1,'user',1700000060.0,'done','','',NULL,NULL,'What is a KV block? See @notes.txt','','[{"name":"notes.txt","text":"a block\nholds 16 tokens\n"}]');
INSERT INTO "messages" VALUES(2,1,'assistant',1700000120.0,'done','','','{"tokens":9,"seconds":0.5,"ttft":0.1,"prompt_tokens":40,"strategy":"top-p 0.9","left_out":0,"blocks":3}','{"temperature":0.4,"top_p":0.9}','A KV block holds 16 tokens.','The note says so.',NULL);
INSERT INTO "messages" VALUES(3,1,'user',1700000180.0,'done','','',NULL,NULL,'And 🎈?','',NULL);
INSERT INTO "messages" VALUES(4,1,'assistant',1700000240.0,'stopped','','',NULL,NULL,'cut','',NULL);
INSERT INTO "messages" VALUES(5,1,'user',1700000300.0,'done','','',NULL,NULL,'again','',NULL);
INSERT INTO "messages" VALUES(6,1,'assistant',1700000360.0,'failed','','the engine has stopped',NULL,NULL,'','',NULL);
INSERT INTO "messages" VALUES(7,1,'assistant',1700000420.0,'streaming','box 20640','',NULL,NULL,'half a rep','',NULL);
INSERT INTO "messages" VALUES(8,2,'user',1700000060.0,'done','','',NULL,NULL,'What is a KV block? See @notes.txt','','[{"name":"notes.txt","text":"a block\nholds 16 tokens\n"}]');
INSERT INTO "messages" VALUES(9,2,'assistant',1700000120.0,'done','','','{"tokens":9,"seconds":0.5,"ttft":0.1,"prompt_tokens":40,"strategy":"top-p 0.9","left_out":0,"blocks":3}','{"temperature":0.4,"top_p":0.9}','A KV block holds 16 tokens.','The note says so.',NULL);
INSERT INTO "messages" VALUES(10,3,'user',1700000600.0,'done','','',NULL,NULL,'bye','',NULL);
CREATE TABLE migrations (version INTEGER PRIMARY KEY, at REAL NOT NULL);
INSERT INTO "migrations" VALUES(1,1700000000.0);
INSERT INTO "migrations" VALUES(2,1700000000.0);
CREATE INDEX messages_of_chat ON messages (chat_id, id);
CREATE INDEX messages_streaming ON messages (id) WHERE state = 'streaming';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('chats',3);
INSERT INTO "sqlite_sequence" VALUES('messages',10);
COMMIT;
