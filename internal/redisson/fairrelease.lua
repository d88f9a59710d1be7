local grants, lease, owner = ARGV[1], ARGV[2], ARGV[3];
local l = begin(KEYS, 1, owner);
if (l.more) then
    return 'more';
end;
local released = nil;
if (not l.holds) then
    leave(l, owner); -- sent in any case: a replica refuses it
elseif (l.holds > 1) then
    -- In this order: behind a PEXPIRE a server whose memory is full permits the other.
    redis.call('pexpire', l.key, lease);
    redis.call('hincrby', l.key, owner, -1);
    released = 0;
else
    redis.call('del', l.key);
    l.free = true;
    released = 1;
end;
settle(l, grants);
return released;
