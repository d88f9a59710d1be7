-- The notes of writers who wait are a hash of our own, of which Redisson doesn't know. A field is a writer, and
-- its value three times in microseconds: since when it has waited, when the note ends, and how long it was
-- made for. The times are the server's.

local function now()
    local time = redis.call('time');
    return time[1] * 1000000 + time[2];
end;

-- read returns since when the writer of a note has waited, and for how long the note counts yet. One that would
-- count for longer than it was made for comes from before the server's clock was put back, and counts no more.
local function read(note, time)
    local since, ends, place = string.match(note, '^(-?%d+) (%d+) (%d+)$');
    if (not since or ends - time > tonumber(place)) then
        return 0, 0;
    end;
    return tonumber(since), ends - time;
end;

-- barred returns for how many milliseconds at most somebody who has waited so long is kept from reading.
local function barred(notes, waited)
    local longest = 0;
    local values = redis.call('hvals', notes);
    if (#values > 0) then
        local time = now();
        for _, note in ipairs(values) do
            local since, left = read(note, time);
            if (since <= time - waited) then
                longest = math.max(longest, left);
            end;
        end;
    end;
    return math.ceil(longest / 1000);
end;

-- leave makes or renews a writer's note, and deletes those that have ended.
local function leave(notes, writer, waited, place)
    local time = now();
    local since = time - waited;
    local all = redis.call('hgetall', notes);
    for i = 1, #all, 2 do
        local earlier, left = read(all[i + 1], time);
        if (left <= 0) then
            redis.call('hdel', notes, all[i]);
        elseif (all[i] == writer) then
            since = math.min(since, earlier);
        end;
    end;
    redis.call('hset', notes, writer, string.format('%.0f %.0f %.0f', since, time + place, place));
    local lease = math.ceil(place / 1000);
    if (redis.call('pttl', notes) < lease) then
        redis.call('pexpire', notes, lease);
    end;
end;
