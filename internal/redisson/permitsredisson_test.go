package redisson

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const reclaimAsRedisson = `
local function reclaim(now, limit)
    local over = redis.call('zrangebyscore', KEYS[2], 0, now, 'limit', 0, limit);
    if (#over > 0) then
        redis.call('zrem', KEYS[2], unpack(over));
        local value = redis.call('incrby', KEYS[1], #over);
        if (value > 0) then
            redis.call('publish', KEYS[3], value);
        end;
        return value;
    end;
    return false;
end;
`

// What Redisson's own scripts do to a semaphore, by their effects. The arguments are all that any of them needs: the time, when a
// lease ends, a number, and ids.
var redissonPermits = map[string]string{
	"jget": reclaimAsRedisson + `
reclaim(ARGV[1], #ARGV - 3);
local value = redis.call('get', KEYS[1]);
if (value ~= false and tonumber(value) >= #ARGV - 3) then
    redis.call('decrby', KEYS[1], #ARGV - 3);
    for i = 4, #ARGV do
        redis.call('zadd', KEYS[2], ARGV[2], ARGV[i]);
    end;
    local left = redis.call('pttl', KEYS[1]);
    if (left > 0) then
        redis.call('pexpire', KEYS[2], left);
    end;
    return 'OK';
end;
local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores');
if (first[1] ~= nil and first[2] ~= '922337203685477') then
    return ':' .. first[2];
end;
return nil;`,
	"jput": `
local ends = redis.call('zscore', KEYS[2], ARGV[4]);
if (ends == false) then
    return 0;
end;
redis.call('zrem', KEYS[2], ARGV[4]);
redis.call('publish', KEYS[3], redis.call('incrby', KEYS[1], 1));
return tonumber(ends) <= tonumber(ARGV[1]) and 0 or 1;`,
	"jputs": reclaimAsRedisson + `
for i = 4, #ARGV do
    local ends = redis.call('zscore', KEYS[2], ARGV[i]);
    if (ends == false or tonumber(ends) <= tonumber(ARGV[1])) then
        return 0;
    end;
end;
reclaim(ARGV[1], -1);
local removed = redis.call('zrem', KEYS[2], unpack(ARGV, 4));
redis.call('incrby', KEYS[1], removed);
redis.call('publish', KEYS[3], removed);
return removed;`,
	"javailable": reclaimAsRedisson + `
local value = reclaim(ARGV[1], -1);
if (value ~= false) then
    return value;
end;
return tonumber(redis.call('get', KEYS[1]) or 0);`,
	"jtryset": `
if (redis.call('get', KEYS[1]) ~= false) then
    return 0;
end;
redis.call('set', KEYS[1], ARGV[3]);
redis.call('publish', KEYS[3], ARGV[3]);
return 1;`,
	"jset": `
local value = redis.call('get', KEYS[1]);
if (value == false) then
    redis.call('set', KEYS[1], ARGV[3]);
    redis.call('publish', KEYS[3], ARGV[3]);
    return nil;
end;
local more = ARGV[3] - (value + redis.call('zcount', KEYS[2], 0, '+inf'));
if (more ~= 0) then
    redis.call('incrby', KEYS[1], more);
    redis.call('publish', KEYS[3], ARGV[3]);
end;
return nil;`,
	"jadd": `
redis.call('set', KEYS[1], (redis.call('get', KEYS[1]) or 0) + ARGV[3]);
if (tonumber(ARGV[3]) > 0) then
    redis.call('publish', KEYS[3], ARGV[3]);
end;
return nil;`,
	"jrenew": reclaimAsRedisson + `
reclaim(ARGV[1], -1);
if (redis.call('zscore', KEYS[2], ARGV[4]) == false) then
    return 0;
end;
redis.call('zadd', KEYS[2], ARGV[2], ARGV[4]);
return 1;`,
	"jexpire": `
local millis = ARGV[2] - ARGV[1];
redis.call('pexpire', KEYS[1], millis);
return redis.call('pexpire', KEYS[2], millis);`,
	"jdelete": `return redis.call('del', KEYS[1], KEYS[2]);`,
}

// redisson carries out a step of Redisson's. A lease of zero never ends. The limit is for how many units its clock is ahead.
func (s semaphore) redisson(x permitStep) string {
	s.t.Helper()
	text, ok := redissonPermits[x.do]
	if !ok {
		s.t.Fatalf("no step %q", x.do)
	}
	now := time.Now().Add(time.Duration(x.limit) * unit).UnixMilli()
	ends := int64(922337203685477)
	if x.lease > 0 {
		ends = now + leaseOf(x).Milliseconds()
	}
	args := []string{strconv.FormatInt(now, 10), strconv.FormatInt(ends, 10), strconv.Itoa(x.count)}
	if slices.Contains([]string{"jget", "jput", "jputs", "jrenew"}, x.do) {
		for i := range x.count {
			args = append(args, fmt.Sprintf("%s%d______________", x.owner, i)[:16])
		}
	}
	reply, err := s.eval(text, permitsKeys("n"), args...)
	if err != nil {
		return err.Error()
	}
	if score, ok := strings.CutPrefix(fmt.Sprint(reply), ":"); ok {
		n, err := strconv.ParseInt(score, 10, 64)
		if err != nil {
			s.t.Fatalf("%+v: %v", x, reply)
		}
		return "wait " + units(n-now)
	}
	return fmt.Sprint(reply)
}

func TestPermitsWithRedisson(t *testing.T) {
	for name, text := range map[string]string{
		"it says how many there are": `
			get A 1 10 0 = nobody has said how many permits there are
			jtryset - 3 = 1
			jget J 1 0 = OK
			jget K 1 20 = OK
			get A 2 10 0 = wait 20
			published = 3`,
	} {
		t.Run(name, func(t *testing.T) {
			semaphores(t, func(t *testing.T, s semaphore) { s.play(text) })
		})
	}
}
