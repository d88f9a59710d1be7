// Package lockdebug serves a page that shows what the clients of a program do: what they hold and wait
// for, what they have lost and why, and, on demand, which locks are in their store.
//
//	http.Handle("/debug/locks", lockdebug.Handler(client))
//
// Nothing registers itself, and the page changes nothing. But it shows the names of locks, and can have
// the store list its locks: restrict access to it, as to net/http/pprof.
//
// First come things that may need attention: lost locks, holds that end soon or aren't renewed, and
// calls that have waited for longer than [dlock.DefaultLease], so that the holder must be alive. The
// page has no scripts, and works on a phone and in dark mode.
//
// Calls that wait are shown with the holder of their lock. The store is asked for it, about 20 locks at
// most, and for half a second at most; a click asks for the others. Everything else is known to this
// process, unless more is asked for.
//
// The heads of columns are links that sort. A search finds a part of a name, a holder or a caller. Of the
// rows that match, 200 are shown, and their number.
//
// With [HandlerOf] it shows sets of shards, too: what this process runs and waits for, and which
// members it saw last. No store is asked for that.
//
// # Parameters
//
//	format=json     JSON instead of HTML; so does a header Accept that prefers application/json
//	all=1           all rows of each table, not the first 200 (or 10, of those that come first)
//	find=orders     only rows that have this text, in letters of whatever size; also in JSON
//	sort=for        sorts the tables that have such a column by it, sort=-for the other way round: name,
//	                holder, by, for, ends, why, lost, place, client; of shards also state, token,
//	                address, seats, list; of the store also line. Not in JSON
//	who=0           asks no store who has what is waited for
//	refresh=5       loads the page again every 5 seconds, or how many it says, up to 3600
//	store=1         asks the store of the first client (store=2: of the second) for its locks, for a second at most,
//	prefix=orders:  for those whose names begin with that,
//	name=orders:42  or for the one of that name
//
// Any path will do, with the methods GET and HEAD. An invalid value is answered with status 400; other
// parameters are ignored.
//
// # JSON
//
// It has all rows, but at most 10,000 of the store. Times are in RFC 3339. Durations are numbers of
// seconds. Fields keep their names, and more may be added.
//
//	{
//	  "time": "2026-11-22T03:04:05.678Z",
//	  "clients": [{                          // in the order in which Handler got them
//	    "id": "web-7/812/X3QYH6…",           // see dlock.Client.ID
//	    "closed": false,
//	    "counters": {                        // see dlock.Stats
//	      "from_store": 812, "handed_over": 97, "reentered": 0, "joined": 0, "granted": 3,
//	      "not_acquired": 5, "canceled": 0, "failed": 1,
//	      "released": 911, "lost": 1, "renewed": 2210, "not_renewed": 4
//	    }
//	  }],
//	  "losses": [{                           // the last 64 of each client, the latest first: see dlock.Loss
//	    "client": "web-7/812/X3QYH6…",
//	    "name": "orders:42", "kind": "exclusive", "holder": "web-7/812/X3QYH6…:17",
//	    "reason": "taken",                   // expired, gone, taken, forced, paused, or lease
//	    "at": "…", "held": 12.3,
//	    "renewed": 9.9,                      // so long before, the store confirmed it last
//	    "by": "web-9/77/K0…:4",              // of taken
//	    "paused": 31.2,                      // of paused
//	    "error": "…"                         // of expired
//	  }],
//	  "holds": [{                            // the oldest first: see dlock.HoldInfo
//	    "client": "…", "name": "…", "kind": "fenced", "holder": "…", "by": "owner 3",
//	    "since": "…", "held": 64.2,
//	    "until": "…", "remaining": 24.1,
//	    "lease": 30, "renewed": true,        // false: it has a fixed lease
//	    "ends_soon": false,                  // renewals fail, or little is left of a fixed lease
//	    "count": 1, "permits": 0, "token": 1790000000000000
//	  }],
//	  "waits": [{                            // the oldest first: see dlock.WaitInfo
//	    "client": "…", "name": "…", "kind": "permits", "by": "permits",
//	    "since": "…", "waited": 2.5,
//	    "until": "…",                        // missing if that isn't known
//	    "long": false,                       // longer than dlock.DefaultLease
//	    "place": 1, "permits": 4,
//	    "held_by": {                         // missing if the store wasn't asked, or hasn't answered
//	      "holders": [],                     // the first 5, as below; none if nobody has the lock now
//	      "more": 0                          // other holders
//	    }
//	  }],
//	  "sets": [{                             // of HandlerOf
//	    "name": "billing",
//	    "members": [{                        // as they were last seen: see shards.Member
//	      "client": "web-7/812/X3QYH6…", "run": "K5JQ…", "address": "10.0.0.7:80",
//	      "state": "seated", "seats": [3], "weight": 1, "cap": 0, "list": "numbered 64"
//	    }],
//	    "shards": [{                         // by name: see shards.ShardInfo
//	      "name": "17", "state": "running", "since": "…", "for": 812.4, "token": 1790000000000000,
//	      "error": "…"                       // of the last run or attempt, if it has failed
//	    }]
//	  }],
//	  "store": {                             // if it was asked for: see dlock.LockInfo
//	    "client": "…", "prefix": "orders:", "name": "",
//	    "locks": [{                          // in the order of their names
//	      "name": "orders:42", "kind": "exclusive",
//	      "holders": [{
//	        "id": "web-7/812/X3QYH6…:17",
//	        "client": "web-7/812/X3QYH6…",   // empty if the id doesn't say
//	        "here": true,                    // it is one of the clients above
//	        "kind": "exclusive", "count": 1,
//	        "remaining": 24.1                // of its lease: null if it never ends
//	      }],
//	      "more": 0,                         // other holders
//	      "line": [],                        // who stands in line, in order
//	      "limit": 0                         // of permits
//	    }],
//	    "more": true,                        // there are, or may be, others
//	    "error": "…"                         // why there are none, or no more
//	  }
//	}
//
// A name that isn't valid UTF-8 has its bytes in "name_base64", too. Characters that don't print are escaped.
package lockdebug
