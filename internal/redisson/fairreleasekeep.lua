local grants, lease, owner, time = ARGV[1], ARGV[2], ARGV[3], ARGV[4];
local l = begin(KEYS, 1, owner);
if (l.more) then
    return 'more';
end;
local keeps, released = keptOf(owner, ':fair'), nil;
if (not l.holds) then
    leave(l, owner); -- sent in any case: a replica refuses it
    if (redis.call('hmget', l.key, keeps)[1]) then
        released = 2;
    end;
elseif (l.holds > 1) then
    redis.call('pexpire', l.key, lease);
    redis.call('hincrby', l.key, owner, -1);
    released = 0;
else
    redis.call('del', l.key);
    redis.call('hset', l.key, keeps, 1);
    redis.call('pexpire', l.key, time);
    released = 2;
end;
settle(l, grants);
return released;
