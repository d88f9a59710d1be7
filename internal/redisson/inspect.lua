-- Says who has what there is under a name, whatever kind of lock it is, and who stands in line for it. It changes nothing. What it
-- finds may be somebody's data, of any size: it looks at so many holders, or a few permits for each of these, and counts the rest.
local key, queue, timeouts, places, ids = unpack(KEYS);
local most = tonumber(ARGV[1]);
local looks = 10 * most; -- at when a reader's holds end

local time = redis.call('time');
local now = time[1] * 1000 + math.floor(time[2] / 1000);
local soon = time[1] * 1000 + math.ceil(time[2] / 1000); -- ends are rounded up

local function is(name, kind)
    return name and redis.call('type', name).ok == kind;
end;

-- line returns who stands in line for a fair lock and isn't overdue: of ours by his place, of Redisson's by his time. If there are no places
-- they were lost, and the next script of a fair lock makes them anew.
local function line()
    local all = {};
    if (not is(queue, 'list')) then
        return all;
    end;
    for _, owner in ipairs(redis.call('lrange', queue, 0, most - 1)) do
        local ours = string.sub(owner, -5) == ':fair';
        local ends = tonumber(redis.call('zscore', ours and places or timeouts, owner) or nil);
        if (ends and ends > now or ours and not ends) then
            table.insert(all, owner);
        end;
    end;
    return all;
end;

-- reads returns for how long a reader goes on reading: until the last of his holds ends, or the lock.
local function reads(owner, count, left)
    local tagged = key;
    if (not string.find(key, '{', 1, true)) then
        tagged = '{' .. key .. '}';
    end;
    local longest = -2;
    for i = 1, count do
        longest = math.max(longest, redis.call('pttl', tagged .. ':' .. owner .. ':rwlock_timeout:' .. i));
    end;
    looks = looks - count;
    return left < 0 and longest or math.min(longest, left);
end;

-- lock returns what a hash is, or nothing if that is no lock: it has one owner and how often he holds it; or, as a read-write
-- lock, a mode and several of these.
local function lock(left)
    local fields = redis.call('hlen', key);
    local mode = redis.call('hget', key, 'mode');
    local shared = fields > 1 and (mode == 'read' or mode == 'write');
    if (fields ~= 1 and not shared) then
        return nil;
    end;
    local holders, rest, cursor, pages = {}, shared and fields - 1 or 1, '0', 0;
    repeat
        local page = redis.call('hscan', key, cursor, 'count', most);
        cursor, pages = page[1], pages + 1;
        for i = 1, #page[2], 2 do
            local owner, count = page[2][i], page[2][i + 1];
            if (not (shared and owner == 'mode')) then
                if (#count > 9 or not string.match(count, '^[1-9]%d*$')) then
                    return nil;
                end;
                local lasts = left;
                if (shared and not (mode == 'write' and string.sub(owner, -6) == ':write')) then
                    lasts = tonumber(count) <= looks and reads(owner, tonumber(count), left);
                end;
                if (lasts) then
                    rest = rest - 1;
                    if (not shared or lasts > -2) then
                        table.insert(holders, owner);
                        table.insert(holders, tonumber(count));
                        table.insert(holders, lasts);
                    end;
                end;
            end;
        end;
    until (cursor == '0' or #holders >= 3 * most or looks <= 0 or pages == 10);
    return {shared and mode or 'lock', 0, rest, holders, shared and {} or line()};
end;

-- permits returns those of a semaphore that are out and not over: those first that end first.
local function permits(available)
    local after = '(' .. string.format('%.0f', now);
    local some = redis.call('zrangebyscore', ids, after, '+inf', 'withscores', 'limit', 0, 5 * most);
    local rest = redis.call('zcount', ids, after, '+inf') - #some / 2;
    local left = redis.call('pttl', ids);
    local holders = {};
    for i = 1, #some, 2 do
        local ends = tonumber(some[i + 1]);
        local lasts = -1;
        if (ends < 922337203685477) then
            lasts = math.max(math.ceil(ends) - soon, 1);
        end;
        if (left >= 0 and (lasts < 0 or left < lasts)) then
            lasts = left;
        end;
        table.insert(holders, some[i]);
        table.insert(holders, 1);
        table.insert(holders, lasts);
    end;
    local limit = available and math.max(available + redis.call('zcard', ids), 0) or 0;
    return {'permits', limit, rest, holders, {}};
end;

local kind = redis.call('type', key).ok;
if (kind == 'hash') then
    return lock(redis.call('pttl', key)) or -1;
end;
if (kind == 'string' and ids and redis.call('strlen', key) <= 15) then
    local available = redis.call('get', key);
    return string.match(available, '^-?%d+$') and permits(tonumber(available)) or -1;
end;
if (kind ~= 'none') then
    return -1;
end;
if (is(ids, 'zset')) then -- how many there are was lost
    local found = permits();
    if (#found[4] > 0) then
        return found;
    end;
end;
return {'', 0, 0, {}, line()};
