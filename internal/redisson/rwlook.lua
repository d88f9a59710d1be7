local left, mode, holds = find(KEYS[1], ARGV[2]);
if (mode ~= ARGV[1] and (mode ~= 'write' or redis.call('hlen', KEYS[1]) == 2)) then
    return {0, false, -2};
end;
if (KEYS[2] and redis.call('exists', KEYS[2]) == 0) then
    if (holds and (mode == 'write' or redis.call('hlen', KEYS[1]) == 2)) then
        return {0, false, -2}; -- that has ended, and nobody else reads
    end;
    holds = false;
end;
return {1, holds, left};
