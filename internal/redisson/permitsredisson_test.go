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

// redissonPermits has scripts with the effects of Redisson's own on a semaphore. The arguments are
// all that any of them needs: the time, when a lease ends, a number, and ids.
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

// redisson carries out a step of Redisson's. A lease of zero never ends. The limit is for how many
// units its clock is ahead.
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
		return "wait " + units(max(n-now, 0))
	}
	return fmt.Sprint(reply)
}

func TestPermitsWithRedisson(t *testing.T) {
	playEach(t, map[string]string{
		"it says how many there are": `
			get A 1 10 0 = the number of permits is not known
			jtryset - 3 = 1
			jget J 1 0 = OK
			jget K 1 20 = OK
			get A 2 10 0 = wait 20
			get A 1 30 0 = count 1
			get B 1 10 0 = wait 20
			look A 1 0 = 0 available, out for ever, has 1
			state = 0 for ever, [A0:30 J0:never K0:20] for ever
			jput J 1 = 1
			get B 1 10 0 = count 1
			jget J 1 0 = wait 10
			published = 3, 1`,
		"all of its permits are for ever": `
			jtryset - 2 = 1
			jget J 2 0 = OK
			get A 1 10 2 = wait for ever
			jputs J 2 = 2
			get A 1 10 2 = count 1
			published = 2, 2`,
		"it waits for ours": `
			get A 2 10 2 = count 2
			jget J 1 20 = wait 10
			put A 2 = freed
			jget J 1 20 = OK
			renew A 2 10 = lost
			state = 1 for ever, [J0:20] for ever
			jput J 1 = 1
			javailable = 2
			state = 2 for ever
			published = 0, 2, 2`,
		"it finds that ours are over": `
			get A 1 10 3 = count 1
			get B 1 10 3 = count 1
			published = 2
			pass 10
			jget J 1 20 = OK
			get C 2 10 3 = count 2
			state = 0 for ever, [C0:10 C1:10 J0:20] for ever
			pass 10
			javailable = 2
			renew C 2 10 = lost
			state = 2 for ever, [J0:10] for ever
			published = 2, 0, 2`,
		"ours find that its are over": `
			jtryset - 3 = 1
			jget J 3 10 = OK
			pass 10
			renew A 1 10 = lost
			state = 3 for ever
			jputs J 3 = 0
			published = 3, 3`,
		"it renews": `
			jtryset - 2 = 1
			jget J 1 10 = OK
			jrenew J 1 30 = 1
			get A 2 10 2 = wait 30
			get A 1 10 2 = count 1
			pass 10
			jrenew J 1 30 = 1
			renew A 1 10 = lost
			state = 1 for ever, [J0:30] for ever
			published = 2, 1`,
		"its clock is ahead": `
			get A 2 10 2 = count 2
			jget J 1 20 10 = OK
			state = 0 for ever, [A0:10 J0:30] for ever
			look A 2 2 = 0 available, out 30, has 1
			renew A 2 30 = lost
			state = 1 for ever, [J0:30] for ever
			published = 0, 1, 1`,
		"its clock is behind": `
			jtryset - 1 = 1
			jget J 1 5 -10 = OK
			get A 1 10 1 = count 1
			jput J 1 = 0
			published = 1, 0
			state = 0 for ever, [A0:10] for ever`,
		"it says another number": `
			get A 3 10 3 = count 3
			jset - 5 = <nil>
			state = 2 for ever, [A0:10 A1:10 A2:10] for ever
			get B 1 10 3 = wait 10
			get B 2 10 0 = count 2
			jset - 2 = <nil>
			state = -3 for ever, [A0:10 A1:10 A2:10 B0:10 B1:10] for ever
			get C 1 10 0 = wait 10
			get C 3 10 0 = more permits than there are
			put B 2 = freed
			state = -1 for ever, [A0:10 A1:10 A2:10] for ever
			published = 0, 5, 2, 0
			jadd - 4 = <nil>
			state = 3 for ever, [A0:10 A1:10 A2:10] for ever
			jadd - -1 = <nil>
			get C 2 10 4 = wait 10
			get C 2 10 5 = count 2
			state = 0 for ever, [A0:10 A1:10 A2:10 C0:10 C1:10] for ever
			published = 4`,
		"a semaphore that ends": `
			jtryset - 3 = 1
			jexpire - 0 50 = 0
			get A 1 90 0 = count 1
			jget J 1 0 = OK
			state = 1 50, [A0:90 J0:never] 50
			jadd - 1 = <nil>
			state = 2 for ever, [A0:90 J0:never] 50
			renew A 1 90 = held
			state = 2 for ever, [A0:90 J0:never] for ever
			jexpire - 0 20 = 1
			jdelete = 2
			renew A 1 90 = lost
			published = 3, 1`,
		"forced": `
			jtryset - 3 = 1
			jget J 1 0 = OK
			get A 1 10 0 = count 1
			all = released
			state = 3 for ever
			jput J 1 = 0
			published = 3, 3`,
	})
}
