package shards

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strconv"
)

// Numbered returns the names of n shards, "0", "1" and so on. Members with different n, for example
// during a deploy, agree on the shards that they all know.
func Numbered(n int) []string {
	names := make([]string, max(n, 0))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}

// Of returns the shard of [Numbered](n) for a key, such as a tenant or a user. The same key and n
// always yield the same shard. It returns "" if n isn't positive.
func Of(key string, n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatUint(score(hash([]string{key})[0], 0)%uint64(n), 10)
}

// newList returns the list that identifies the given shards. The names must be sorted and distinct.
func newList(names []string) list {
	numbered := slices.Sorted(slices.Values(Numbered(len(names))))
	if len(names) > 0 && slices.Equal(names, numbered) {
		return list{numbered: len(names), digest: strconv.Itoa(algorithm)}
	}
	h := sha256.New()
	h.Write([]byte{algorithm})
	for _, name := range names {
		h.Write(binary.AppendUvarint(nil, uint64(len(name))))
		h.Write([]byte(name))
	}
	return list{digest: base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])}
}

// knows reports whether a member with the list other can be certain that a member with the list l
// knows the given shard.
func (l list) knows(shard string, other list) bool {
	if l.digest != other.digest || l.numbered == 0 {
		return l.digest == other.digest
	}
	i, err := strconv.Atoi(shard)
	return err == nil && i < l.numbered
}

// wanted maps each shard to the member that should run it. The parameter mine is the list of the
// member that calls wanted. The parameter seats lists the taken seats, and taken maps each seat to
// its member. A shard goes to the member on its seat or, if that member has too many, to another
// (see bound). If the chosen member doesn't certainly know the shard, a deputy that knows the shard
// runs it instead. Members whose lists agree get the same result.
func wanted(names []string, mine list, seats []int, taken map[int]*member) map[string]*member {
	all := make(map[string]*member, len(names))
	if len(seats) == 0 {
		return all
	}
	sitting := map[int]*member{}
	longest := mine
	for _, seat := range seats {
		m := taken[seat]
		if m == nil {
			continue // the member has just left, so its shards have no owner for now
		}
		sitting[seat] = m
		if m.list.digest == mine.digest && m.list.numbered > longest.numbered {
			longest = m.list
		}
	}
	if longest != mine { // all members compute with the longest list
		names = slices.Sorted(slices.Values(Numbered(longest.numbered)))
	}
	owners := make([]*member, len(names))
	for i, seat := range assign(names, seats) {
		owners[i] = sitting[seat]
	}
	bound(names, owners, sitting)
	for i, shard := range names {
		if m := owners[i]; m != nil && !m.list.knows(shard, mine) {
			owners[i] = deputy(shard, mine, sitting)
		}
		all[shard] = owners[i]
	}
	return all
}

// A memo stores the last result of wanted, since members often call wanted with the same arguments.
type memo struct {
	names  []string
	mine   list
	seats  []int
	taken  map[int]*member
	owners map[string]*member
}

func (m *memo) of(
	names []string, mine list, seats []int, taken map[int]*member,
) map[string]*member {
	alike := func(a, b *member) bool {
		return a == b || a != nil && b != nil && a.run == b.run && a.list == b.list &&
			a.most == b.most && a.address == b.address && len(a.seats) == len(b.seats)
	}
	same := m.owners != nil && mine == m.mine && slices.Equal(seats, m.seats) &&
		slices.Equal(names, m.names)
	for _, seat := range seats {
		same = same && alike(taken[seat], m.taken[seat])
	}
	if !same {
		*m = memo{names, mine, slices.Clone(seats), taken, wanted(names, mine, seats, taken)}
	}
	return m.owners
}

// bound takes the excess shards away from members that exceed their limits, and deals them to the
// members with the lowest load, up to the limit of each. If no member has room for a shard, the
// shard gets no member.
func bound(shards []string, members []*member, taken map[int]*member) {
	load := map[*member]int{}
	var all []*member
	for _, m := range taken {
		if _, seen := load[m]; !seen {
			load[m] = 0
			all = append(all, m)
		}
	}
	if !slices.ContainsFunc(all, func(m *member) bool { return m.most > 0 }) {
		return
	}
	slices.SortFunc(all, func(a, b *member) int { return cmp.Compare(a.run, b.run) })
	hashes := hash(shards)
	order := make([]int, len(shards))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(score(hashes[a], 0), score(hashes[b], 0)), a-b)
	})
	var spare []int
	for _, i := range order {
		m := members[i]
		if m == nil {
			continue
		}
		if m.most > 0 && load[m] == m.most {
			members[i] = nil
			spare = append(spare, i)
			continue
		}
		load[m]++
	}
	for _, i := range spare {
		var least *member
		for _, m := range all {
			if (m.most == 0 || load[m] < m.most) &&
				(least == nil || load[m]*len(least.seats) < load[least]*len(m.seats)) {
				least = m
			}
		}
		if least == nil {
			return
		}
		members[i] = least
		load[least]++
	}
}

// deputy returns the member that runs a shard because the shard's owner doesn't know it. That is
// the member with the highest score among those that know the shard, or nil if none does.
func deputy(shard string, mine list, taken map[int]*member) (best *member) {
	h := hash([]string{shard})[0]
	var highest uint64
	for seat, m := range taken { // scores differ
		if sc := score(h, seat); m.list.knows(shard, mine) && (best == nil || sc > highest) {
			best, highest = m, sc
		}
	}
	return best
}
