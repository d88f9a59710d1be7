// Package lockdebug serves a web page about the clients of a program. The page shows which locks
// they hold, wait for, and have lost, with the reason for each loss. On demand it shows the locks
// in their store.
//
//	http.Handle("/debug/locks", lockdebug.Handler(client))
//
// The package registers no handler by itself, and the page changes nothing. But it shows the names
// of locks, and can make the store list its locks, so restrict access to it, as to net/http/pprof.
//
// The page begins with what may need attention: lost locks, holds that end soon or whose renewals
// fail, and calls that have waited for longer than [dlock.DefaultLease]. After that time, a lock
// with the default lease would be free again if its holder had died. The page uses no scripts, and
// works on a phone and in dark mode.
//
// For each waiting call, the page shows the holder of the lock. To find it, the page asks the store
// about at most 20 locks, for at most half a second. A click asks about the others. Everything else
// on the page comes from this process.
//
// A click on the heading of a column sorts by it. A search looks for a text in names, holders and
// callers. The page shows the first 200 matching rows, and the number of matches.
//
// With [HandlerOf] the page also shows sets of shards: the shards that this process runs and waits
// for, and the members as it last saw them. That needs no request to the store.
//
// # Parameters
//
//	format=json     returns JSON instead of HTML, as does an Accept header that prefers
//	                application/json
//	all=1           all rows of each table, not the first 200 (10 in the tables at the top)
//	find=orders     only rows with this text, ignoring case; also in JSON
//	sort=for        sorts the tables that have a column "for" by it; sort=-for reverses them.
//	                Columns: name, holder, by, for, ends, why, lost, place, client; of shards also
//	                state, token, address, seats, list; of the store also line. Not in JSON
//	who=0           asks no store for the holders of locks that are waited for
//	refresh=5       loads the page again every 5 seconds, or another number up to 3600
//	store=1         asks the store of the first client (store=2: of the second) for its locks,
//	                for a second at most
//	prefix=orders:  with store: only locks whose names begin with that
//	name=orders:42  with store: only the lock of that name
//
// The handler serves every path, with the methods GET and HEAD. An invalid value is answered with
// status 400; other parameters are ignored.
//
// # JSON
//
// The JSON contains all rows, but at most 10,000 locks of the store. Times are in the format of RFC
// 3339. Durations are in seconds. Fields keep their names, and more may be added.
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
//	  "losses": [{                           // the last 64 of each client, latest first
//	    "client": "web-7/812/X3QYH6…",
//	    "name": "orders:42", "kind": "exclusive", "holder": "web-7/812/X3QYH6…:17",
//	    "reason": "taken",                   // expired, gone, taken, forced, paused, or lease
//	    "at": "…", "held": 12.3,
//	    "renewed": 9.9,                      // how long before "at" the store last confirmed it
//	    "by": "web-9/77/K0…:4",              // only with the reason taken: the new holder
//	    "paused": 31.2,                      // only with paused: for how long, at least
//	    "error": "…"                         // only with expired: the store's last error
//	  }],
//	  "holds": [{                            // the oldest first: see dlock.HoldInfo
//	    "client": "…", "name": "…", "kind": "fenced", "holder": "…", "by": "owner 3",
//	    "caller": "…",                       // only with a label or dlock.WithCallers
//	    "since": "…", "held": 64.2,
//	    "until": "…", "remaining": 24.1,
//	    "lease": 30, "renewed": true,        // false: it has a fixed lease
//	    "ends_soon": false,                  // renewals fail, or little is left of a fixed lease
//	    "count": 1, "permits": 0, "token": 1790000000000000
//	  }],
//	  "waits": [{                            // the oldest first: see dlock.WaitInfo
//	    "client": "…", "name": "…", "kind": "permits", "by": "permits",
//	    "caller": "…",                       // only with a label or dlock.WithCallers
//	    "since": "…", "waited": 2.5,
//	    "until": "…",                        // when the call gives up; missing if unknown
//	    "long": false,                       // longer than dlock.DefaultLease
//	    "place": 1, "permits": 4,
//	    "held_by": {                         // missing if the store hasn't answered
//	      "holders": [],                     // the first 5, as below; none if the lock is free
//	      "more": 0                          // other holders
//	    }
//	  }],
//	  "sets": [{                             // only with sets: see HandlerOf
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
//	        "client": "web-7/812/X3QYH6…",   // empty if the id doesn't contain it
//	        "here": true,                    // it is one of the clients above
//	        "kind": "exclusive", "count": 1,
//	        "remaining": 24.1,               // of its lease: null if it never ends
//	        "kept": false                    // it is released, but still kept taken
//	      }],
//	      "more": 0,                         // other holders
//	      "line": [],                        // the owners in line, in order
//	      "limit": 0                         // of permits
//	    }],
//	    "more": true,                        // there are other locks, or may be
//	    "error": "…"                         // why some or all locks are missing
//	  }
//	}
//
// If a name isn't valid UTF-8, "name_base64" contains its bytes. Unprintable characters are
// escaped.
package lockdebug
