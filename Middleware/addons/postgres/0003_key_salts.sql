-- oldest program: 1
-- The salts of format 2 of the discussions of clients with an API key. With the first of them, the oldest program is
-- this one: an older one would store the data of such a client under another name.
CREATE TABLE wilmer.key_salts (
    space   text COLLATE "C" PRIMARY KEY,
    -- As in the file key-salt.json.
    content text NOT NULL
);
