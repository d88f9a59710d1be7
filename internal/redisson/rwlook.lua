local left, mode, holds = find(KEYS[1], ARGV[2]);
if (mode == ARGV[1] or mode == 'write' and redis.call('hlen', KEYS[1]) > 2) then
    return {1, holds, left};
end;
return {0, false, -2};
