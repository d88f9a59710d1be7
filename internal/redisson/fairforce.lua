local grants = ARGV[1];
local l = begin(KEYS, 1);
if (not l.free and (l.left < 0 or not isLock(l.key))) then
    return -1;
end;
if (l.more) then
    return 'more';
end;
local released = redis.call('del', l.key);
l.free = true;
settle(l, grants);
return released;
