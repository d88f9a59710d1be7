package shards

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// sitting returns members, each with one seat, that have these lists.
func sitting(lists ...list) map[int]*member {
	taken := map[int]*member{}
	for seat, l := range lists {
		taken[seat] = &member{note: note{run: fmt.Sprint("m", seat), seats: []int{seat}, list: l}}
	}
	return taken
}

// counts returns how many shards each has.
func counts(owners map[string]*member) map[string]int {
	n := map[string]int{}
	for _, m := range owners {
		if m != nil {
			n[m.run]++
		}
	}
	return n
}

func TestOf(t *testing.T) {
	for key, want := range map[string]string{"": "2", "a": "70", "tenant-7": "32"} {
		if got := Of(key, 100); got != want {
			t.Errorf("Of(%q, 100) = %q, want %q, which mustn't change", key, got, want)
		}
	}
	if got := Of("a", 0); got != "" {
		t.Errorf("Of(a, 0) = %q", got)
	}
	n := map[string]int{}
	for i := range 10000 {
		n[Of(fmt.Sprint("key", i), 10)]++
	}
	for _, name := range Numbered(10) {
		if n[name] < 800 || n[name] > 1200 {
			t.Errorf("shard %s has %d keys of 10,000", name, n[name])
		}
	}
}

func TestNewList(t *testing.T) {
	sorted := func(names ...string) list { slices.Sort(names); return newList(names) }
	if a, b := newList(slices.Sorted(slices.Values(Numbered(12)))),
		sorted(Numbered(12)...); a != b || a.numbered != 12 {
		t.Errorf("a list of twelve numbers is %+v, %+v", a, b)
	}
	if sorted("a", "b") != sorted("b", "a") {
		t.Error("the order of a list counts")
	}
	all := map[list]bool{}
	for _, l := range []list{sorted(), sorted("a"), sorted("a", "b"), sorted("ab"),
		sorted("0", "2"), sorted("0")} {
		all[l] = true
	}
	if len(all) != 6 {
		t.Errorf("six lists have %d digests", len(all))
	}
}

func TestKnows(t *testing.T) {
	ten, twenty := newList(slices.Sorted(slices.Values(Numbered(10)))),
		newList(slices.Sorted(slices.Values(Numbered(20))))
	named := newList([]string{"a", "b"})
	for _, c := range []struct {
		who   list
		shard string
		by    list
		want  bool
	}{
		{ten, "9", twenty, true}, {ten, "10", twenty, false}, {twenty, "10", ten, true},
		{ten, "10", ten, false},
		{named, "a", named, true}, {named, "9", ten, false}, {ten, "9", named, false},
		{newList([]string{"a", "c"}), "a", named, false},
	} {
		if got := c.who.knows(c.shard, c.by); got != c.want {
			t.Errorf("%+v knows %s of %+v: %t", c.who, c.shard, c.by, got)
		}
	}
}

// The picture in the guide shows what is so.
func TestPictureInTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/guide.md")
	if err != nil {
		t.Fatal(err)
	}
	names := strings.Split("0123456789ab", "")
	row := func(seats ...int) map[int]string {
		has := map[int]string{}
		for i, seat := range assign(names, seats) {
			has[seat] += " " + names[i]
		}
		return has
	}
	three, two := row(0, 1, 2), row(0, 2)
	for _, want := range []string{
		fmt.Sprintf("A:%s       B:%s   C:%s\n", three[0], three[1], three[2]),
		fmt.Sprintf("A:%s       E:%s   D:%s ", three[0], three[1], three[2]),
		fmt.Sprintf("A:%s                D:%s ", two[0], two[2]),
	} {
		if !strings.Contains(string(guide), want) {
			t.Errorf("the guide's picture has no %q", want)
		}
	}
}

// Each shard in anybody's list is run by one member, and only by one that knows it.
func TestListsThatDiffer(t *testing.T) {
	short, long := slices.Sorted(slices.Values(Numbered(200))),
		slices.Sorted(slices.Values(Numbered(220)))
	taken := sitting(newList(short), newList(long), newList(short), newList(long))
	seats := []int{0, 1, 2, 3}
	old, young := wanted(short, newList(short), seats, taken),
		wanted(long, newList(long), seats, taken)
	for _, shard := range long {
		a, b := old[shard], young[shard]
		if a != b || a == nil {
			t.Errorf("shard %s is %v's to those with the short list, and %v's to the others", shard,
				a, b)
		} else if !a.list.knows(shard, newList(long)) {
			t.Errorf("shard %s is run by one that doesn't know it", shard)
		}
	}

	left, right := []string{"a", "b", "c", "d"}, []string{"b", "c", "d", "e"}
	taken = sitting(newList(left), newList(right), newList(left), newList(right))
	for _, names := range [][]string{left, right} {
		for shard, m := range wanted(names, newList(names), seats, taken) {
			if m == nil || m.list != newList(names) {
				t.Errorf("shard %s of %v is %v's", shard, names, m)
			}
		}
	}
}

func TestCap(t *testing.T) {
	names := slices.Sorted(slices.Values(Numbered(100)))
	taken := sitting(newList(names), newList(names), newList(names), newList(names))
	taken[1].most, taken[2].most = 10, 30
	seats := []int{0, 1, 2, 3}
	n := counts(wanted(names, newList(names), seats, taken))
	if n["m1"] != 10 || n["m0"] != 30 || n["m2"] != 30 || n["m3"] != 30 {
		t.Errorf("with caps of 10 and 30 they have %v", n)
	}
	taken[0].most, taken[3].most = 20, 20
	n = counts(wanted(names, newList(names), seats, taken))
	if n["m0"] != 20 || n["m1"] != 10 || n["m2"] != 30 || n["m3"] != 20 {
		t.Errorf("where there is too little room they have %v", n)
	}
}

func TestWeights(t *testing.T) {
	names := slices.Sorted(slices.Values(Numbered(90)))
	taken := sitting(newList(names), newList(names))
	taken[2] = taken[0]
	taken[0].seats = []int{0, 2}
	if n := counts(wanted(names, newList(names), []int{0, 1, 2}, taken)); n["m0"] != 60 ||
		n["m1"] != 30 {
		t.Errorf("with weights of 2 and 1 they have %v", n)
	}
}

// The seat of a member that has just left counts until it is known whether others follow.
func TestSeatOfOneThatLeft(t *testing.T) {
	names := slices.Sorted(slices.Values(Numbered(90)))
	taken := sitting(newList(names), newList(names), newList(names))
	delete(taken, 1)
	if n := counts(wanted(names, newList(names), []int{0, 1, 2}, taken)); n["m0"] != 30 ||
		n["m2"] != 30 {
		t.Errorf("the others have %v", n)
	}
}
