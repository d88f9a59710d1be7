package etcdbackend

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

var (
	errClosed = &backend.Error{Kind: backend.Refused, Err: errors.New("etcd: session closed")}
	errShape  = &backend.Error{Kind: backend.Unknown, Err: errors.New("etcd: an answer to something else")}
	errShort  = &backend.Error{Kind: backend.Unknown, Err: errors.New("etcd: the lease of a lock could not be prolonged")}
	errSilent = &backend.Error{Kind: backend.Unknown, Err: errors.New("etcd: no answer for too long")}
)

// withKind gives an error of a request its kind. sent says whether the request may have reached a
// server.
//
// An error of etcd's own comes before anything was done only where that is said here: a proposal
// may be agreed on after the member that made it has given up on it, or has stopped.
func withKind(err error, sent bool) *backend.Error {
	if kinded, ok := errors.AsType[*backend.Error](err); ok {
		return kinded
	}
	kind := backend.Unknown
	switch etcd := rpctypes.Error(err); {
	case isAny(etcd, refusals):
		kind = backend.Refused
	case isAny(etcd, delays), !sent:
		kind = backend.Retry
	}
	if status.Code(err) == codes.Canceled && !sent && errors.Is(err, errClientClosed) {
		kind = backend.Refused
	}
	return &backend.Error{Kind: kind, Err: err}
}

// errClientClosed is what a request gets when the client was closed.
var errClientClosed = status.Error(codes.Canceled, "grpc: the client connection is closing")

// refusals are answers to a request that would get the same answer again.
var refusals = []error{
	rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound,
	rpctypes.ErrRoleNotFound, rpctypes.ErrPermissionNotGranted, rpctypes.ErrAuthNotEnabled, rpctypes.ErrInvalidAuthMgmt,
	rpctypes.ErrEmptyKey, rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge,
}

// delays are answers to a request that was not carried out, and may be another time. The requests
// ask for a leader, so ErrNoLeader is said before anything was proposed. ErrNoSpace is none of them: the
// transaction that fills a store is carried out, and answered with it.
var delays = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.ErrLeaseNotFound, errLearner,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
}

// errLearner is what a member says that is a learner, and so doesn't serve clients yet. The client
// asks one member after the other, so another try is another member's. For requests of one answer
// it does that itself, for streams it doesn't.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

func isLearners(err error) bool { return err != nil && errors.Is(rpctypes.Error(err), errLearner) }

// mostLearners is how often in a row a learner may be asked for a stream. If requests alternate
// with streams, that can be every time for two members.
const mostLearners = 16

func isAny(err error, list []error) bool {
	for _, e := range list {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// tooLong says whether a request, or the answer to it, was longer than somebody on the way takes.
// There are other reasons for the same code.
func tooLong(err error) bool {
	kinded, ok := errors.AsType[*backend.Error](err)
	return ok && status.Code(kinded.Err) == codes.ResourceExhausted &&
		strings.Contains(kinded.Err.Error(), "larger than max")
}

// notDone returns the error of a step that has come to nothing: it failed while it was being
// prepared, so whether that request was carried out does not matter.
func notDone(err error) error {
	switch {
	case backend.KindOf(err) == backend.Refused:
		return err
	case tooLong(err): // the next answer would be, too
		return &backend.Error{Kind: backend.Refused, Err: err}
	}
	return &backend.Error{Kind: backend.Retry, Err: err}
}

// inDoubt returns the error of a step that may have been carried out, at least in part.
func inDoubt(err error) error {
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

// afterwards returns the error of a step that was carried out but for what is to be done after it, or nil.
func afterwards(err error) error {
	if err != nil {
		return inDoubt(err)
	}
	return nil
}

// ended returns the error of a context that has ended before anything was sent, or nil.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	return nil
}
