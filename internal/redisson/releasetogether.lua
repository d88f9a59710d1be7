local call = redis.call;
local message, lease = ARGV[1], ARGV[2];

local function release(name, channel, owner)
    local count = call('hget', name, owner);
    if (not count) then
        return false;
    end;
    if (count ~= '1' and call('hincrby', name, owner, -1) > 0) then
        call('pexpire', name, lease);
        return 0;
    end;
    call('del', name);
    call('publish', channel, message);
    return 1;
end;

local replies = {};
local n = #KEYS / 2;
for i = 1, n do
    replies[i] = each(release, KEYS[i], KEYS[n + i], ARGV[i + 2]);
end;
return replies;
