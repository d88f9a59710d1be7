local key, timeouts, channel = unpack(KEYS);
local count = tonumber(ARGV[2]);
local available, ids = find(key, timeouts);
local now = math.floor(clock() / 1000);
local over = reclaim(timeouts, now);
local mine = own(timeouts, ARGV[1], count, now);
remove(timeouts, mine);
if (over + #mine > 0) then
    settle(key, timeouts, channel, available, available and available + ids, true);
end;
if (#mine == count) then
    return 1;
end;
return nil;
