local key, timeouts, channel = unpack(KEYS);
local lease, owner, count, limit = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]);
local available, ids = find(key, timeouts);
local told = available and available + ids;
local total = limit > 0 and limit or told;
if (not total) then
    return -2;
elseif (count > total) then
    return -3;
elseif (count > tonumber(ARGV[5])) then
    return -4;
end;

local micros = clock();
local now = math.floor(micros / 1000);
local mine = own(timeouts, owner, count, now);
local out = redis.call('zcount', timeouts, '(' .. string.format('%.0f', now), '+inf');
local over = ids - out;
local wake = over > 0;
if (#mine > 0 and #mine ~= count) then
    remove(timeouts, mine);
    out, mine, wake = out - #mine, {}, true;
end;
local granted = #mine == count or out + count <= total and not isKept(timeouts, owner, now);
if (granted) then
    for i = #mine, count - 1 do
        mine[i + 1] = id(owner, i);
    end;
    -- Before all that a server whose memory is full permits.
    keep(key, timeouts, mine, micros, lease);
    wake = wake or limit > 0 and (not told or limit > told);
else
    total = told;
end;
if (over > 0) then
    reclaim(timeouts, now);
end;
if (granted or wake) then
    settle(key, timeouts, channel, available, total, wake);
end;
if (granted) then
    return {count};
end;
return lasts(timeouts, 0, micros);
