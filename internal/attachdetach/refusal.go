package attachdetach

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Back-off of a volume whose step the API server understood and refused: an admission
// rule or missing rights, which no soon retry mends. Upstream waits as long at most.
// An event of the volume still wakes it at once.
const firstRefusal, lastRefusal = time.Second, 2 * time.Minute

func newRefusals() workqueue.TypedRateLimiter[key] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[key](firstRefusal, lastRefusal)
}

// retry says when to try again what failed: by the queue's short back-off, or by the
// long one if nothing but refusals stood in the way and nothing else is due before.
// Thousands of volumes that can never be attached must not keep the API server busy.
func (w *work) retry(err error, next reconcile.Result) (reconcile.Result, error) {
	if !refused(err) {
		return reconcile.Result{}, w.errorOf(err) // controller-runtime logs it
	}
	after := w.refusals.When(w.key)
	if next.RequeueAfter > 0 {
		after = min(after, next.RequeueAfter)
	}
	w.logger().Error(err, "API server refused a request, retrying", "retryAfter", after)
	return reconcile.Result{RequeueAfter: after}, nil
}

// refused tells whether every error in err is a refusal.
func refused(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !refused(e) {
				return false
			}
		}
		return true
	}
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsRequestEntityTooLargeError(err)
}
