local left, mode, reads, writes = find(KEYS[1], ARGV[2], ARGV[3]);
if (mode == 'write' and not writes and not (reads and redis.call('exists', KEYS[2]) == 1)) then
    return left; -- else it is the owner's, who has given back what he wrote, and that is kept
end;
local lease = tonumber(ARGV[1]);
if (not reads or not prolong(KEYS[2], lease)) then
    if (not writes) then
        local wait = barred(KEYS[3], ARGV[4]);
        if (wait > 0) then
            return wait;
        end;
        if (mode and not isLock(KEYS[1])) then
            redis.call('get', KEYS[1]);
        end;
    end;
    redis.call('hset', KEYS[1], 'mode', mode or 'read', ARGV[2], 1);
    redis.call('set', KEYS[2], '1', 'px', lease);
end;
if (left < lease) then
    redis.call('pexpire', KEYS[1], lease);
end;
return {1};
