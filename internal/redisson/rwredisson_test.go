package redisson

import (
	"fmt"
	"strconv"
	"testing"
)

// redissonScripts has scripts with the effects of Redisson's own on a read-write lock. They leave
// out the key by which Redisson can repeat an unlock, which concerns nobody else.
var redissonScripts = map[string]string{
	"jread": `
local mode = redis.call('hget', KEYS[1], 'mode');
if (mode == false) then
    redis.call('hset', KEYS[1], 'mode', 'read');
    redis.call('hset', KEYS[1], ARGV[2], 1);
    redis.call('set', KEYS[2] .. ':1', 1);
    redis.call('pexpire', KEYS[2] .. ':1', ARGV[1]);
    redis.call('pexpire', KEYS[1], ARGV[1]);
    return nil;
end;
if (mode == 'read' or mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1) then
    local i = redis.call('hincrby', KEYS[1], ARGV[2], 1);
    redis.call('set', KEYS[2] .. ':' .. i, 1);
    redis.call('pexpire', KEYS[2] .. ':' .. i, ARGV[1]);
    redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[1])));
    return nil;
end;
return redis.call('pttl', KEYS[1]);`,
	"jwrite": `
local mode = redis.call('hget', KEYS[1], 'mode');
if (mode == false) then
    redis.call('hset', KEYS[1], 'mode', 'write');
    redis.call('hset', KEYS[1], ARGV[2] .. ':write', 1);
    redis.call('pexpire', KEYS[1], ARGV[1]);
    return nil;
end;
if (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 1) then
    redis.call('hincrby', KEYS[1], ARGV[2] .. ':write', 1);
    redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1]);
    return nil;
end;
return redis.call('pttl', KEYS[1]);`,
	"junread": `
local mode = redis.call('hget', KEYS[1], 'mode');
if (mode == false) then
    redis.call('publish', KEYS[3], '0');
    return nil;
end;
if (redis.call('hexists', KEYS[1], ARGV[2]) == 0) then
    return nil;
end;
local count = redis.call('hincrby', KEYS[1], ARGV[2], -1);
if (count == 0) then
    redis.call('hdel', KEYS[1], ARGV[2]);
end;
redis.call('del', KEYS[2] .. ':' .. (count + 1));
if (redis.call('hlen', KEYS[1]) > 1) then
    local longest = -3;
    for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
        for i = tonumber(redis.call('hget', KEYS[1], field)) or 0, 1, -1 do
            longest = math.max(longest, redis.call('pttl', '{' .. KEYS[1] .. '}:' .. field .. ':rwlock_timeout:' .. i));
        end;
    end;
    if (longest > 0) then
        redis.call('pexpire', KEYS[1], longest);
        return 0;
    end;
    if (mode == 'write') then
        return 0;
    end;
end;
redis.call('del', KEYS[1]);
redis.call('publish', KEYS[3], '0');
return 1;`,
	"junwrite": `
local mode = redis.call('hget', KEYS[1], 'mode');
if (mode == false) then
    redis.call('publish', KEYS[3], '1');
    return nil;
end;
if (mode ~= 'write' or redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 0) then
    return nil;
end;
if (redis.call('hincrby', KEYS[1], ARGV[2] .. ':write', -1) > 0) then
    redis.call('pexpire', KEYS[1], ARGV[1]);
    return 0;
end;
redis.call('hdel', KEYS[1], ARGV[2] .. ':write');
if (redis.call('hlen', KEYS[1]) == 1) then
    redis.call('del', KEYS[1]);
    redis.call('publish', KEYS[3], '1');
else
    redis.call('hset', KEYS[1], 'mode', 'read');
end;
return 1;`,
	"jreread": `
local count = redis.call('hget', KEYS[1], ARGV[2]);
if (count == false) then
    return 0;
end;
for i = tonumber(count), 1, -1 do
    redis.call('pexpire', KEYS[2] .. ':' .. i, ARGV[1]);
end;
redis.call('pexpire', KEYS[1], ARGV[1]);
return 1;`,
	"jrewrite": `
if (redis.call('hexists', KEYS[1], ARGV[2] .. ':write') == 0) then
    return 0;
end;
redis.call('pexpire', KEYS[1], ARGV[1]);
return 1;`,
}

// redisson carries out a step of Redisson's on the lock n.
func (s *store) redisson(x step) string {
	s.t.Helper()
	text, ok := redissonScripts[x.do]
	if !ok {
		s.t.Fatalf("no step %q", x.do)
	}
	reply, err := s.eval(text, []string{"n", "{n}:" + x.owner + ":rwlock_timeout", RWChannel("n")},
		strconv.FormatInt(int64(x.lease)*unit.Milliseconds(), 10), x.owner)
	if err != nil {
		return err.Error()
	}
	if ms, ok := reply.(int64); ok && (x.do == "jread" || x.do == "jwrite") {
		return "wait " + units(ms)
	}
	return fmt.Sprint(reply)
}

func TestRWWithRedisson(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"its reader has two holds": `
			jread J 30 = <nil>
			jread J 10 = <nil>
			read A 20 = count 1
			state = n[A:1 J:2 mode:read] 30, {n}:A:rwlock_timeout:1 20, {n}:J:rwlock_timeout:1 30, {n}:J:rwlock_timeout:2 10
			unread A = freed
			state = n[J:2 mode:read] 30, {n}:J:rwlock_timeout:1 30, {n}:J:rwlock_timeout:2 10
			junread J = 0
			read A 20 = count 1
			junread J = 0
			state = n[A:1 mode:read] 20, {n}:A:rwlock_timeout:1 20
			unread A = freed
			published = redisson_rwlock:{n} 0
			state`,
		"the second hold is the longer one": `
			jread J 10 = <nil>
			jread J 40 = <nil>
			read A 20 = count 1
			pass 15
			unread A = freed
			state = n[J:2 mode:read] 25, {n}:J:rwlock_timeout:2 25`,
		"the later of two reads under a write": `
			jwrite J 40 = <nil>
			jread J 10 = <nil>
			jread J 30 = <nil>
			pass 20
			whoreads B = count 0 for 20
			pass 15
			whoreads B = free`,
		"its dead reader": `
			jread J 10 = <nil>
			read A 30 = count 1
			pass 15
			unread A = freed
			published = redisson_rwlock:{n} 0
			state`,
		"our dead reader": `
			read A 10 = count 1
			jread J 30 = <nil>
			pass 15
			junread J = 1
			published = redisson_rwlock:{n} 0
			state`,
		"its reader renews for less": `
			read A 30 = count 1
			jread J 10 = <nil>
			jreread J 10 = 1
			state = n[A:1 J:1 mode:read] 10, {n}:A:rwlock_timeout:1 30, {n}:J:rwlock_timeout:1 10
			reread A 30 = held
			state = n[A:1 J:1 mode:read] 30, {n}:A:rwlock_timeout:1 30, {n}:J:rwlock_timeout:1 10
			jreread J 10 = 1
			junread J = 0
			state = n[A:1 mode:read] 30, {n}:A:rwlock_timeout:1 30`,
		"its writer": `
			jwrite J 10 = <nil>
			jwrite J 10 = <nil>
			jread J 10 = <nil>
			read A 10 = wait 20
			write A 10 = wait 20
			unread A = not held
			unwrite A 10 = not held
			junwrite J 10 = 0
			junwrite J 10 = 1
			read A 10 = count 1
			junread J = 0
			write J 10 = wait 10
			unread A = freed
			published = redisson_rwlock:{n} 0
			state`,
		"our writer": `
			write A 10 = count 1
			read A 10 = count 1
			jwrite J 10 = wait 10
			jread J 10 = wait 10
			jrewrite A 20 = 1
			junread J = <nil>
			junwrite J = <nil>
			unwrite A 10 = freed
			published = redisson_rwlock:{n} 1
			jread J 10 = <nil>
			unread A = freed
			junread J = 1
			published = redisson_rwlock:{n} 0
			state`,
		"it knows of no notes": `
			read A 10 = count 1
			write W 10 0 5 = wait 10
			jread J 10 = <nil>
			unread A = freed
			junread J = 1
			jwrite J 10 = <nil>
			junwrite J = 1
			write W 10 0 5 = count 1`,
		"forced": `
			jread J 10 = <nil>
			jread J 20 = <nil>
			read A 10 = count 1
			noreads = released
			state
			jwrite J 10 = <nil>
			jread J 10 = <nil>
			nowrites = released
			published = redisson_rwlock:{n} 0, redisson_rwlock:{n} 1
			state`,
	} {
		t.Run(name, func(t *testing.T) {
			everywhere(t, func(t *testing.T, s *store) { s.play(text) })
		})
	}
}
