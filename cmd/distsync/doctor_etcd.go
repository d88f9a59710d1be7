package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/seed951563bd/distsync/etcdbackend"
)

// checkEtcd checks the cluster itself: its members, quorum, alarms and authentication.
func (d *doctor) checkEtcd(ctx context.Context) {
	answered := make(map[uint64]bool)
	for _, endpoint := range d.etcd.Endpoints() {
		d.checkMember(ctx, endpoint, answered)
	}
	d.checkQuorum(ctx, answered)
	d.checkAlarms(ctx)
	d.checkAuth(ctx)
}

// checkMember checks the member behind an endpoint.
func (d *doctor) checkMember(ctx context.Context, endpoint string, answered map[uint64]bool) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	status, err := d.etcd.Status(ctx, endpoint)
	if err != nil {
		d.warn("member", "is it running, and reachable from here?", "%s: %v", endpoint, err)
		return
	}
	answered[status.Header.MemberId] = true
	switch {
	case status.Leader == 0:
		d.fail("member", "look at the members and the network between them",
			"%s: etcd %s, without a leader", endpoint, status.Version)
	case status.IsLearner:
		d.fail("member", "give the endpoints of voting members",
			"%s: etcd %s, a learner, which answers no requests about locks", endpoint,
			status.Version)
	case older(status.Version):
		d.warn("member",
			"use 3.6.5, 3.5.23 or later: older versions may end a lease that was just renewed",
			"%s: etcd %s", endpoint, status.Version)
	default:
		d.ok("member", "%s: etcd %s", endpoint, status.Version)
	}
	if quota := status.DbSizeQuota; quota > 0 && status.DbSize > quota/10*9 {
		d.warn("space", "compact and defragment it: a full store grants no locks",
			"%s: %d of %d MB are used", endpoint, status.DbSize>>20, quota>>20)
	}
}

// older reports whether etcd's version has known bugs that make locks unsafe.
func older(version string) bool {
	var v [3]int
	for i, part := range strings.SplitN(strings.SplitN(version, "-", 2)[0], ".", 3) {
		v[i], _ = strconv.Atoi(part)
	}
	switch {
	case v[0] != 3:
		return v[0] < 3
	case v[1] == 5:
		return v[2] < 23
	case v[1] == 6:
		return v[2] < 5
	}
	return v[1] < 5
}

// checkQuorum checks how many members can fail before the quorum is lost.
func (d *doctor) checkQuorum(ctx context.Context, answered map[uint64]bool) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	list, err := d.etcd.MemberList(ctx)
	if err != nil {
		d.fail("quorum", "a majority of the members must answer", "%v", err)
		return
	}
	voters, there := 0, 0
	for _, m := range list.Members {
		if !m.IsLearner {
			voters++
		}
		if answered[m.ID] {
			there++
		}
	}
	switch {
	case there < voters:
		d.warn("quorum",
			"name all members as hosts in the URL, so that the client survives the loss of one",
			"%d of %d members answered", there, voters)
	case voters == 1:
		d.ok("quorum", "a single member")
	default:
		d.ok("quorum", "all %d members answered: %d may fail", voters, (voters-1)/2)
	}
}

// checkAlarms checks for alarms. A member raises one when its disk space is used up, for example.
func (d *doctor) checkAlarms(ctx context.Context) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	list, err := d.etcd.AlarmList(ctx)
	if err != nil {
		d.warn("alarms", "look with: etcdctl alarm list", "%v", err)
		return
	}
	for _, a := range list.Alarms {
		if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
			d.fail("alarms", "compact, defragment, then: etcdctl alarm disarm",
				"member %x is full: no locks are granted, but held locks are renewed",
				a.MemberID)
		} else {
			d.fail("alarms", "look with: etcdctl alarm list", "member %x: %v", a.MemberID, a.Alarm)
		}
	}
	if len(list.Alarms) == 0 {
		d.ok("alarms", "none")
	}
}

// checkAuth reports whether clients have to authenticate.
func (d *doctor) checkAuth(ctx context.Context) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	status, err := d.etcd.AuthStatus(ctx)
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied) || err == nil && status.Enabled:
		d.ok("auth", "users have to log in")
	case err != nil:
		d.warn("auth", "look with: etcdctl auth status", "%v", err)
	default:
		d.ok("auth", "off: every client may do everything")
	}
}

// removeEtcd deletes the keys of a lock, so that they don't remain until their leases expire.
func (d *doctor) removeEtcd(ctx context.Context, name string) error {
	prefix := d.prefix
	if prefix == "" {
		prefix = etcdbackend.DefaultPrefix
	}
	_, err := d.etcd.Delete(ctx, prefix+name, clientv3.WithPrefix())
	return err
}
