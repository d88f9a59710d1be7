package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed951563bd/distsync/dlock"
	"github.com/seed951563bd/distsync/dlock/shards"
)

func newShards(g *global) *cobra.Command {
	var numbered int
	var check bool
	cmd := &cobra.Command{
		Use:   "shards NAME [SHARD…]",
		Short: "Show which member runs which shard of divided work",
		Long: `Shows the members that divide the work NAME with package dlock/shards, and the owner
of each shard, which is the holder of its lock. Of a member it prints the seats, the
state, the list of shards, the number of shards that it has, and how long it stays a
member unless it renews that. A member without a seat waits for one: a new member
waits for two thirds of a lease, unless an old member leaves.

If shards have numbers, the members say how many there are, or --list does. You can also
give the names of the shards. Otherwise only shards with an owner are shown.

With --check the exit status is 1 if nobody is a member, a shard is free, or the lists of
members differ. That is normal in a deploy, and for a lease after a member has died. So
alert only when it lasts.`,
		Example: `  distsync shards billing
  distsync shards billing --check --quiet
  distsync shards billing --json | jq '.members[].client'`,
		Args: usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if numbered < 0 || numbered > 0 && len(args) > 1 {
				return exitf(exitUsage,
					"--list is the number of shards: give either that or their names: "+
						"usage is %s", cmd.UseLine())
			}
			names := args[1:]
			if numbered > 0 {
				names = shards.Numbered(numbered)
			}
			return g.with(cmd.Context(), func(s *store, c *dlock.Client) error {
				d, err := divided(cmd.Context(), c, args[0], names)
				if err != nil {
					return g.failed(s, err)
				}
				if !check || !g.quiet {
					if err := d.print(cmd.OutOrStdout(), g.json); err != nil {
						return err
					}
				}
				if wrong := d.wrong(); check && len(wrong) > 0 {
					return exitf(exitFailed, "shards of %s: %s", printable(args[0]),
						strings.Join(wrong, "; "))
				}
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&numbered, "list", 0, "the number of shards, if they have numbers")
	cmd.Flags().BoolVar(&check, "check", false,
		"exit with status 1 if a shard is free, or members disagree")
	return cmd
}

// A division is the state of a set of shards and of the members that divide them.
type division struct {
	nameJSON
	Members []memberJSON `json:"members"`
	Shards  []shardJSON  `json:"shards"`
}

type memberJSON struct {
	Client    string   `json:"client"`
	Run       string   `json:"run"`
	Address   string   `json:"address,omitempty"`
	State     string   `json:"state"`
	Seats     []int    `json:"seats"`
	Weight    int      `json:"weight"`
	Cap       int      `json:"cap,omitempty"`
	List      string   `json:"list"`
	Has       int      `json:"has"` // the number of printed shards that this member's client owns
	Remaining *seconds `json:"remaining"`
	lasts     string
}

type shardJSON struct {
	nameJSON
	State string `json:"state"`
	Owner string `json:"owner,omitempty"`
}

// divided asks the store for the members and for the owner of each shard.
func divided(ctx context.Context, c *dlock.Client, name string, names []string) (*division, error) {
	members, err := shards.New(c, name, nil).Members(ctx)
	if err != nil {
		return nil, err
	}
	numbered := 0
	for _, m := range members {
		numbered = max(numbered, m.Shards)
	}
	if len(names) == 0 {
		names = shards.Numbered(numbered)
	}
	d := &division{nameJSON: jsonName(name), Members: []memberJSON{}, Shards: []shardJSON{}}
	has := make(map[string]int)
	for s, err := range shards.New(c, name, names).Table(ctx) {
		if err != nil {
			return nil, err
		}
		if s.Owner != "" {
			has[s.Owner]++
		}
		d.Shards = append(d.Shards, shardJSON{jsonName(s.Name), string(s.State), s.Owner})
	}
	slices.SortStableFunc(d.Shards, func(a, b shardJSON) int {
		x, errX := strconv.Atoi(a.Name)
		y, errY := strconv.Atoi(b.Name)
		if errX == nil && errY == nil {
			return cmp.Compare(x, y)
		}
		return cmp.Compare(a.Name, b.Name)
	})
	for _, m := range members {
		d.Members = append(d.Members, memberJSON{
			Client: m.Client, Run: m.Run, Address: m.Address, State: m.State,
			Seats:  append([]int{}, m.Seats...),
			Weight: m.Weight, Cap: m.Cap, List: m.List, Has: has[m.Client],
			Remaining: jsonRemaining(m.Left), lasts: lasts(m.Left),
		})
	}
	return d, nil
}

// wrong describes the problems with the division. Each of them is normal for a short time, for
// example during a deploy.
func (d *division) wrong() (all []string) {
	var free []string
	for _, s := range d.Shards {
		if s.Owner == "" {
			free = append(free, printable(s.Name))
		}
	}
	lists := make(map[string]bool)
	for _, m := range d.Members {
		lists[m.List] = true
	}
	const most = 10
	if len(d.Members) == 0 {
		all = append(all, "nobody is a member")
	}
	if n := len(free); n > most {
		all = append(all, fmt.Sprintf("%d are free: %s and so on", n,
			strings.Join(free[:most], ", ")))
	} else if n > 0 {
		all = append(all, fmt.Sprintf("%d are free: %s", n, strings.Join(free, ", ")))
	}
	if len(lists) > 1 {
		all = append(all, fmt.Sprintf("members have %d lists", len(lists)))
	}
	return all
}

func (d *division) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, d)
	}
	s := screenOf(w)
	members := table{
		head: []string{"MEMBER", "ADDRESS", "STATE", "SEATS", "LIST", "HAS", "LASTS"},
		cut:  []int{0, 1},
	}
	for _, m := range d.Members {
		members.rows = append(members.rows, []string{
			printable(m.Client), orNothing(m.Address), m.State,
			strings.Trim(fmt.Sprint(m.Seats), "[]"),
			printable(m.List), strconv.Itoa(m.Has), m.lasts,
		})
	}
	owners := table{head: []string{"SHARD", "STATE", "OWNER"}, cut: []int{2, 0}}
	for _, shard := range d.Shards {
		owners.rows = append(owners.rows,
			[]string{printable(shard.Name), shard.State, orNothing(shard.Owner)})
	}
	text := members.on(s)
	if text == "" {
		text = "nobody is a member\n"
	}
	if below := owners.on(s); below != "" {
		text += "\n" + below
	}
	_, err := io.WriteString(w, text)
	return err
}

// orNothing is like printable, but returns "" for an empty text.
func orNothing(text string) string {
	if text == "" {
		return ""
	}
	return printable(text)
}
