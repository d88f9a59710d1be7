package lockdebug

import (
	"time"

	"github.com/seed951563bd/distsync/dlock/shards"
)

// A set describes a [shards.Set]. It contains the members of the Set, and the shards that this
// process runs or waits for.
type set struct {
	named
	Members []member `json:"members"`
	Shards  []shard  `json:"shards"`
}

type member struct {
	Client  string `json:"client"`
	Run     string `json:"run"`
	Address string `json:"address,omitempty"`
	State   string `json:"state"`
	Seats   []int  `json:"seats"`
	Weight  int    `json:"weight"`
	Cap     int    `json:"cap"`
	List    string `json:"list"`
}

type shard struct {
	named
	State string    `json:"state"`
	Since time.Time `json:"since"`
	For   seconds   `json:"for"`
	Token uint64    `json:"token"`
	Error string    `json:"error,omitempty"`
}

func newSet(s *shards.Set, now time.Time) set {
	all := set{named: newNamed(s.Name()), Members: []member{}, Shards: []shard{}}
	for _, m := range s.Seen() {
		all.Members = append(all.Members, member{
			m.Client, m.Run, m.Address, m.State, append([]int{}, m.Seats...), m.Weight, m.Cap,
			m.List,
		})
	}
	for _, i := range s.Mine() {
		row := shard{
			named: newNamed(i.Name), State: string(i.State), Since: i.Since,
			For:   seconds(since(i.Since, now)),
			Token: i.Token,
		}
		if i.Err != nil {
			row.Error = i.Err.Error()
		}
		all.Shards = append(all.Shards, row)
	}
	return all
}

// Class returns the CSS class for a shard's state.
func (s shard) Class() string {
	switch shards.State(s.State) {
	case shards.Overdue:
		return "bad"
	case shards.Failing:
		return "warn"
	default:
		return "calm"
	}
}

// Disagree reports whether members have different lists of shards.
func (s set) Disagree() bool {
	for _, m := range s.Members {
		if m.List != s.Members[0].List {
			return true
		}
	}
	return false
}

// A setView is the page's view of a set.
type setView struct {
	set
	Members rows[member]
	Shards  rows[shard]
}

func newSetView(v *view, s set) setView {
	return setView{
		set:     s,
		Members: pick(v, "shards", s.Members, mostRows, every, byMember),
		Shards:  pick(v, "shards", s.Shards, mostRows, every, byShard),
	}
}
