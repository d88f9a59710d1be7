package redisson

import (
	"fmt"
	"strconv"
	"time"
)

// purgeAsRedisson is the beginning of each of Redisson's scripts but one. The arguments are an
// owner, the time, a lease, and for how long its caller waits.
const purgeAsRedisson = `
while (true) do
    local head = redis.call('lindex', KEYS[2], 0);
    if (not head) then
        break;
    end;
    local score = redis.call('zscore', KEYS[3], head);
    if (not score or tonumber(score) > tonumber(ARGV[2])) then
        break;
    end;
    redis.call('zrem', KEYS[3], head);
    redis.call('lpop', KEYS[2]);
end;
`

const getAsRedisson = purgeAsRedisson + `
local owner, now, lease, wait = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]);
if (redis.call('exists', KEYS[1]) == 0 and (redis.call('exists', KEYS[2]) == 0 or redis.call('lindex', KEYS[2], 0) == owner)) then
    redis.call('lpop', KEYS[2]);
    redis.call('zrem', KEYS[3], owner);
    for _, member in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
        redis.call('zincrby', KEYS[3], -wait, member);
    end;
    redis.call('hset', KEYS[1], owner, 1);
    redis.call('pexpire', KEYS[1], lease);
    return nil;
end;
if (redis.call('hexists', KEYS[1], owner) == 1) then
    redis.call('hincrby', KEYS[1], owner, 1);
    redis.call('pexpire', KEYS[1], lease);
    return nil;
end;
`

// redissonFair has scripts with the effects of Redisson's own on a fair lock. They leave out the
// key by which Redisson can repeat an unlock.
var redissonFair = map[string]string{
	"jlock": getAsRedisson + `
if (redis.call('zscore', KEYS[3], owner)) then
    return math.max(0, redis.call('pttl', KEYS[1]));
end;
local last = redis.call('lindex', KEYS[2], -1);
local left = redis.call('pttl', KEYS[1]);
if (last and last ~= owner and redis.call('zscore', KEYS[3], last)) then
    left = tonumber(redis.call('zscore', KEYS[3], last)) - now;
end;
if (redis.call('zadd', KEYS[3], string.format('%.0f', left + wait + now), owner) == 1) then
    redis.call('rpush', KEYS[2], owner);
end;
return left;`,
	"jtry": getAsRedisson + `return 'no';`,
	"jquit": `
local line, behind = redis.call('lrange', KEYS[2], 0, -1), false;
for _, member in ipairs(line) do
    if (behind) then
        redis.call('zincrby', KEYS[3], -tonumber(ARGV[4]), member);
    end;
    behind = behind or member == ARGV[1];
end;
redis.call('zrem', KEYS[3], ARGV[1]);
redis.call('lrem', KEYS[2], 0, ARGV[1]);
return nil;`,
	"junlock": purgeAsRedisson + `
local function wake()
    local head = redis.call('lindex', KEYS[2], 0);
    if (head) then
        redis.call('publish', KEYS[4] .. ':' .. head, '0');
    end;
end;
if (redis.call('exists', KEYS[1]) == 0) then
    wake();
    return 'freed';
end;
if (redis.call('hexists', KEYS[1], ARGV[1]) == 0) then
    return nil;
end;
if (redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0) then
    redis.call('pexpire', KEYS[1], ARGV[3]);
    return 'left';
end;
redis.call('del', KEYS[1]);
wake();
return 'freed';`,
	"jforce": purgeAsRedisson + `
if (redis.call('del', KEYS[1]) == 0) then
    return 'free';
end;
local head = redis.call('lindex', KEYS[2], 0);
if (head) then
    redis.call('publish', KEYS[4] .. ':' .. head, '0');
end;
return 'freed';`,
}

// redisson carries out a step of Redisson's: its owner, a lease and for how long the caller waits.
// A number is a time.
func (s lineStore) redisson(x lineStep) string {
	s.t.Helper()
	text, ok := redissonFair[x.do]
	if !ok {
		s.t.Fatalf("no step %q", x.do)
	}
	ms := func(n int) string {
		return strconv.FormatInt((time.Duration(n) * unit).Milliseconds(), 10)
	}
	keys := fairKeys("n")
	reply, err := s.eval(text, []string{keys[0], keys[1], keys[2], keys[4]}, x.owner, ms(*s.now),
		ms(x.lease), ms(x.place))
	if err != nil {
		s.t.Fatal(err)
	}
	if left, ok := reply.(int64); ok {
		return units(left)
	}
	return fmt.Sprint(reply)
}
