package oteldlock

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed951563bd/distsync/dlock"
)

// spans creates spans for acquisitions.
type spans struct {
	tracer trace.Tracer
	common []attribute.KeyValue
}

// acquireStart begins a span, and stores it in the returned context. It is stored under the key s,
// because other Traces of the client can also store spans there.
func (s *spans) acquireStart(ctx context.Context, e dlock.AcquireStart) context.Context {
	attrs := append(slices.Clip(s.common), nameKey.String(e.Name), kindKey.String(e.Kind.String()))
	if e.Permits > 0 {
		attrs = append(attrs, permitsKey.Int(e.Permits))
	}
	inner, span := s.tracer.Start(ctx, "distsync acquire", trace.WithAttributes(attrs...))
	switch {
	case span.IsRecording():
		return context.WithValue(inner, s, span)
	case span.SpanContext().Equal(trace.SpanContextFromContext(ctx)):
		return ctx // the tracer creates no spans
	default:
		// The span isn't sampled. Still return it in the context: as the parent of the spans of the
		// store's client, it keeps them from being sampled, too.
		return inner
	}
}

func (s *spans) acquireDone(ctx context.Context, e dlock.AcquireDone) {
	span, ok := ctx.Value(s).(trace.Span)
	if !ok {
		return
	}
	attrs := []attribute.KeyValue{outcomeKey.String(e.Outcome.String())}
	if e.Outcome == dlock.OutcomeAcquired {
		attrs = append(attrs, viaKey.String(e.Via.String()), holderKey.String(e.HolderID))
	}
	if failure := failureOf(e); failure != "" {
		attrs = append(attrs, errorTypeKey.String(failure))
		span.SetStatus(codes.Error, e.Err.Error())
	}
	span.SetAttributes(attrs...)
	span.End()
}

// stepDone adds a step of the store to the acquisition's span, as an event.
func (s *spans) stepDone(ctx context.Context, e dlock.StepDone) {
	span, ok := ctx.Value(s).(trace.Span)
	if !ok {
		return
	}
	attrs := []attribute.KeyValue{stepKey.String(e.Op), durationKey.Float64(e.Took.Seconds())}
	if e.Err != nil {
		attrs = append(attrs, errorTypeKey.String(stepErrorType(e.Err)))
	}
	span.AddEvent("distsync.step", trace.WithAttributes(attrs...))
}
