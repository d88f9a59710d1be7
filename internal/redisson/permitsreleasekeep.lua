local key, timeouts, channel = unpack(KEYS);
local owner, count, time = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]);
local available, ids = find(key, timeouts);
local micros = clock();
local now = math.floor(micros / 1000);
local back = reclaim(timeouts, now);
local mine = own(timeouts, owner, count, now);
remove(timeouts, mine);
local released = nil;
if (#mine == count) then
    local kept = {};
    for i = 0, count - 1 do
        kept[i + 1] = keptId(owner, i);
    end;
    keep(key, timeouts, kept, micros, time);
    released = 2;
else
    back = back + #mine;
    if (isKept(timeouts, owner, now)) then
        released = 2;
    end;
end;
if (back > 0) then
    settle(key, timeouts, channel, available, available and available + ids, true);
end;
return released;
