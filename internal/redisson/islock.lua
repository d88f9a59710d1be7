-- Says whether a hash may be a lock: it has one owner and how often he holds it; or, as a read-write
-- lock, a mode and several of these.
local function isLock(key)
    local fields = redis.call('hlen', key);
    local mode = redis.call('hget', key, 'mode');
    local shared = fields > 1 and (mode == 'read' or mode == 'write');
    if (fields ~= 1 and not shared) then
        return false;
    end;
    for _, value in ipairs(redis.call('hvals', key)) do
        if (not string.match(value, '^[1-9]%d*$') and not (shared and value == mode)) then
            return false;
        end;
    end;
    return true;
end;
