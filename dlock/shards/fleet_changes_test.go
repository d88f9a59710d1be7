package shards

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed951563bd/distsync/internal/test/depth"
)

// The lease of these tests is the default of 30 s, and there are 20 replicas of 200 shards.
const lease = 30 * time.Second

// twenty returns a fleet that has settled.
func twenty(t *testing.T) *fleet {
	f := newFleet(t, Numbered(200))
	for range 20 {
		f.start()
	}
	f.settles("cold start of 20 at once", 5*time.Second)
	return f
}

func TestColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, Numbered(200))
		for range 20 {
			f.start()
			time.Sleep(rand.N(200 * time.Millisecond))
		}
		o := f.settles("cold start of 20 within 2 s", 5*time.Second)
		f.moved("a cold start", o, 260, 3*time.Second)
	})
}

func TestJoinAndLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twenty(t)
		f.start()
		o := f.settles("one joins", 22*time.Second)
		f.moved("one joins", o, 9, 60*time.Millisecond)
		for range 5 {
			f.start()
		}
		o = f.settles("five join", 22*time.Second)
		f.moved("five join", o, 40, 60*time.Millisecond)
		f.stop(f.live[3])
		o = f.settles("one leaves", 2*time.Second)
		f.moved("one leaves", o, 8, 60*time.Millisecond)
		for range 5 {
			f.stop(f.any())
		}
		o = f.settles("five leave at once", 2*time.Second)
		f.moved("five leave", o, 52, 60*time.Millisecond)
		f.start()
		o = f.settles("one joins where seats are empty", 22*time.Second)
		// how many depends on which seats are empty
		f.moved("one joins", o, 30, 60*time.Millisecond)
	})
}

func TestRollingDeploy(t *testing.T) {
	t.Run("new before old", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			for _, old := range slices.Clone(f.live) {
				f.start()
				time.Sleep(4 * time.Second)
				f.stop(old)
				<-old.done
				time.Sleep(time.Second)
			}
			o := f.settles("new before old", 5*time.Second)
			f.moved("a deploy", o, 200, 10*time.Millisecond)
		})
	})
	t.Run("five at a time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			olds := slices.Clone(f.live)
			for five := range slices.Chunk(olds, 5) {
				for range five {
					f.start()
				}
				time.Sleep(5 * time.Second)
				for _, old := range five {
					f.stop(old)
				}
			}
			o := f.settles("five at a time", 5*time.Second)
			f.moved("a deploy", o, 200, 10*time.Millisecond)
		})
	})
	t.Run("all at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			olds := slices.Clone(f.live)
			for range olds {
				f.start()
			}
			time.Sleep(8 * time.Second)
			for _, old := range olds {
				f.stop(old)
			}
			o := f.settles("blue and green", 5*time.Second)
			f.moved("a deploy", o, 200, 10*time.Millisecond)
		})
	})
	t.Run("old before new", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			for _, old := range slices.Clone(f.live) {
				f.stop(old)
				<-old.done
				time.Sleep(3 * time.Second)
				f.start()
				time.Sleep(2 * time.Second)
			}
			o := f.settles("old before new", 25*time.Second)
			f.moved("a deploy", o, 250, 60*time.Millisecond)
		})
	})
	t.Run("runs that take long to finish", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			f.takes = func() time.Duration { return rand.N(8 * time.Second) }
			for _, old := range slices.Clone(f.live) {
				f.start()
				time.Sleep(4 * time.Second)
				f.stop(old)
				<-old.done
			}
			o := f.settles("0 to 8 s to finish", 10*time.Second)
			f.moved("a deploy", o, 200, 10*time.Millisecond)
		})
	})
	t.Run("of one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet(t, Numbered(200))
			f.start()
			f.settles("one member", 5*time.Second)
			f.start()
			time.Sleep(4 * time.Second)
			f.stop(f.live[0])
			o := f.settles("a deploy of one", 5*time.Second)
			f.moved("a deploy", o, 200, 10*time.Millisecond)
		})
	})
}

// While a deploy brings another list, each shard in either is run by a replica that knows it, and
// none stands still for long. Once all have the new list they have an equal part of it.
func TestDeployOfAnotherList(t *testing.T) {
	short, long := Numbered(200), Numbered(220)
	words := func(numbers []string, left ...string) (names []string) {
		for _, n := range numbers {
			if !slices.Contains(left, n) {
				names = append(names, "queue-"+n)
			}
		}
		return names
	}
	for what, lists := range map[string][2][]string{
		"more numbers":                {short, long},
		"fewer numbers":               {long, short},
		"some words more, some fewer": {words(short), words(long, Numbered(30)...)},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, lists[0])
				for range 20 {
					f.start()
				}
				f.settles("cold start of 20 at once", 5*time.Second)
				f.names = lists[1]
				for i, old := range slices.Clone(f.live) {
					f.start()
					time.Sleep(4 * time.Second)
					f.stop(old)
					<-old.done
					time.Sleep(time.Second)
					for _, name := range slices.Concat(lists[0], lists[1]) {
						known := i < 19 || slices.Contains(lists[1], name)
						if known && f.free(name) {
							t.Errorf("after replica %d was replaced nobody runs %s", i, name)
						}
					}
				}
				o := f.settles(what, 5*time.Second)
				f.moved("a deploy of another list", o, 20*220, time.Second)
			})
		})
	}
}

func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twenty(t)
		f.kill(f.live[7])
		f.settles("one is killed", lease+time.Second)
		f.start()
		f.settles("and one joins", 22*time.Second)
		f.kill(f.live[7])
		time.Sleep(5 * time.Second)
		f.start()
		o := f.settles("killed, and replaced after 5 s", lease+time.Second)
		f.moved("a replacement", o, 10, lease+time.Second)
		for _, r := range slices.Clone(f.live)[:10] {
			f.kill(r)
		}
		o = f.settles("half are killed", lease+time.Second)
		f.moved("half are killed", o, 110, lease+time.Second)
		for range 10 {
			f.start()
		}
		o = f.settles("and ten come", 22*time.Second)
		f.moved("ten come", o, 110, 60*time.Millisecond)
		for range 10 {
			r := f.start()
			time.Sleep(5 * time.Second)
			f.kill(r)
			time.Sleep(time.Second)
		}
		o = f.settles("one crashes again and again", 25*time.Second)
		f.moved("a crash loop", o, 0, 0)
	})
}

func TestStoreDown(t *testing.T) {
	for _, outage := range []time.Duration{5 * time.Second, 12 * time.Second, 19 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			f.net.down.Store(true)
			time.Sleep(outage)
			f.net.down.Store(false)
			o := f.settles("the store is down for "+outage.String(), 5*time.Second)
			f.moved("an outage", o, 0, 0)
		})
	}
	for _, outage := range []time.Duration{35 * time.Second, 45 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			f.net.down.Store(true)
			time.Sleep(outage)
			f.net.down.Store(false)
			f.settles("the store is down for "+outage.String(), 12*time.Second)
		})
	}
}

func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twenty(t)
		r := f.live[4]
		r.link.cut.Store(true)
		f.gone(r)
		f.settles("one is cut off", lease+time.Second)
		f.live = append(f.live, r)
		r.link.cut.Store(false)
		f.settles("and back", lease)
		for range depth.Of(3, 8, 20) {
			r = f.any()
			r.link.cut.Store(true)
			time.Sleep(15*time.Second + rand.N(lease))
			r.link.cut.Store(false)
			f.settles("one is cut off for a while", lease)
		}
	})
}

func TestNobodyHearsTheBell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := twenty(t)
		f.net.deaf.Store(true)
		f.stop(f.live[5])
		f.settles("one leaves, and nobody hears", 15*time.Second)
		f.start()
		f.settles("one joins, and nobody hears", 35*time.Second)
	})
}

func TestRandomChanges(t *testing.T) {
	for range depth.Of(1, 1, 5) {
		synctest.Test(t, func(t *testing.T) {
			f := twenty(t)
			for began := time.Now(); time.Since(began) < 20*time.Minute; {
				switch n := rand.IntN(6); {
				case n < 2 && len(f.live) > 8:
					f.kill(f.any())
				case n < 4 && len(f.live) > 8:
					f.stop(f.any())
				case len(f.live) < 32:
					f.start()
				}
				time.Sleep(rand.N(20 * time.Second))
			}
			f.settles("twenty minutes of joins, leaves and deaths", 2*lease)
		})
	}
}

func TestLargeFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shards, replicas := depth.Of(300, 300, 1000), depth.Of(20, 20, 50)
		f := newFleet(t, Numbered(shards))
		for range replicas {
			f.start()
			time.Sleep(rand.N(100 * time.Millisecond))
		}
		f.settles("a large fleet", 10*time.Second)
		f.net.requests.Store(0)
		time.Sleep(time.Minute)
		// 1,000 x 50 send 20 requests a second at most. Those are each replica's, and not each
		// shard's.
		if n := f.net.requests.Load(); n > int64(20*60*replicas/50) {
			t.Errorf("at rest they ask the store %d times in a minute", n)
		}
	})
}
