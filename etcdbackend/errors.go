package etcdbackend

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/seed951563bd/distsync/backend"
)

var (
	errClosed = &backend.Error{Kind: backend.Refused, Err: errors.New("etcd: session closed")}
	errShape  = &backend.Error{
		Kind: backend.Unknown, Err: errors.New("etcd: the answer belongs to another request"),
	}
	errShort = &backend.Error{
		Kind: backend.Unknown, Err: errors.New("etcd: the lease of a lock could not be prolonged"),
	}
	errSilent = &backend.Error{
		Kind: backend.Unknown, Err: errors.New("etcd: no answer for too long"),
	}
)

// withKind adds a kind to a request's error. The parameter sent says whether the request may have
// reached a server.
//
// A member may return an error after it has proposed a change. The other members may agree on the
// proposal although that member has given up on it, or has stopped. So once a request may have
// reached a server, only the errors in delays and refusals show that nothing was done.
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

// errClientClosed is the error of a request after the client was closed.
var errClientClosed = status.Error(codes.Canceled, "grpc: the client connection is closing")

// refusals are errors that a request would get again if it were repeated.
var refusals = []error{
	rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty,
	rpctypes.ErrUserNotFound,
	rpctypes.ErrRoleNotFound, rpctypes.ErrPermissionNotGranted, rpctypes.ErrAuthNotEnabled,
	rpctypes.ErrInvalidAuthMgmt,
	rpctypes.ErrEmptyKey, rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge,
}

// delays are errors of requests that were not carried out, but may succeed later. Requests require
// a leader, so a request that gets ErrNoLeader was never proposed. ErrNoSpace isn't in the list:
// the transaction that fills a store gets that error although it is carried out.
var delays = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.ErrLeaseNotFound, errLearner,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
}

// errLearner is the error of a member that is a learner, and so doesn't serve clients yet. The
// client asks one member after the other, so another try reaches another member. The client itself
// retries unary requests, but not streams.
var errLearner = rpctypes.Error(rpctypes.ErrGRPCNotSupportedForLearner)

func isLearners(err error) bool { return err != nil && errors.Is(rpctypes.Error(err), errLearner) }

// mostLearners is how many times in a row learners can refuse a stream before that counts as a
// failure. The number is limited, since each retry could reach a learner again. For example, if
// there are two members, and the client alternates between streams and other requests, every stream
// could go to the same member.
const mostLearners = 16

func isAny(err error, list []error) bool {
	return slices.ContainsFunc(list, func(e error) bool { return errors.Is(err, e) })
}

// tooLong reports whether a request or its answer was longer than the client or the server accepts.
// gRPC uses the same code for other errors, so tooLong looks at the text.
func tooLong(err error) bool {
	kinded, ok := errors.AsType[*backend.Error](err)
	return ok && status.Code(kinded.Err) == codes.ResourceExhausted &&
		strings.Contains(kinded.Err.Error(), "larger than max")
}

// notDone returns the error of a step that failed during its preparation. The step then changed
// nothing, even if the failed request was carried out. notDone returns nil if err is nil.
func notDone(err error) error {
	switch {
	case err == nil, backend.KindOf(err) == backend.Refused:
		return err
	case tooLong(err): // the next answer would also be too long
		return &backend.Error{Kind: backend.Refused, Err: err}
	}
	return &backend.Error{Kind: backend.Retry, Err: err}
}

// inDoubt returns the error of a step that may have been carried out, at least in part, or whose
// follow-up failed after it was carried out. It returns nil if err is nil.
func inDoubt(err error) error {
	if err == nil {
		return nil
	}
	return &backend.Error{Kind: backend.Unknown, Err: err}
}

// ended returns an error if a context has already ended, and nil otherwise. It is called before any
// request is sent, so the error says that nothing was done.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &backend.Error{Kind: backend.Retry, Err: err}
	}
	return nil
}
