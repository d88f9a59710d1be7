local call = redis.call;
local lease = ARGV[1];
local free = call('exists', unpack(KEYS)) == 0; -- all of them, as most are

local function acquire(name, owner)
    if (free or call('exists', name) == 0 or call('hexists', name, owner) == 1) then
        call('hincrby', name, owner, 1);
        call('pexpire', name, lease);
        return false; -- as a nil would end the list
    end;
    return call('pttl', name);
end;

local replies = {};
for i, name in ipairs(KEYS) do
    replies[i] = each(acquire, name, ARGV[i + 1]);
end;
return replies;
