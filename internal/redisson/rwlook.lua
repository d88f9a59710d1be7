local left, mode, holds = find(KEYS[1], ARGV[2]);
if (mode ~= ARGV[1] and (mode ~= 'write' or readFor(KEYS[1]) <= 0)) then
    return {0, false, -2, 0}; -- a field of one who reads may outlast the read
end;
if (KEYS[2] and redis.call('exists', KEYS[2]) == 0) then
    if (holds and redis.call('hlen', KEYS[1]) == 2) then
        return {0, false, -2, 0}; -- that has ended, and nobody else reads
    end;
    holds = false;
end;
local kept = 0;
if (ARGV[1] == 'write' and not holds) then
    local all = redis.call('hgetall', KEYS[1]);
    for i = 1, #all, 2 do
        if (string.sub(all[i], -11) == '-kept:write') then
            kept = 1;
        end;
    end;
end;
return {1, holds, left, kept};
