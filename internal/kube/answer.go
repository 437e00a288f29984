package kube

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// IsAnswer reports whether the error of a write is the API server's answer that nothing was changed. After any other error the
// write may have been carried out, or may still be.
func IsAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500 && !apierrors.IsTimeout(err)
}

// MayBeCommitted reports whether a write that failed with the error may have been carried out, or may still be: the API server did
// not refuse it, and was reachable.
func MayBeCommitted(err error) bool { return !IsAnswer(err) && !utilnet.IsConnectionRefused(err) }

// reachTimeout is how long the API server may take to answer.
const reachTimeout = 30 * time.Second

// Reach returns an error that names the API server if it does not answer. A refusal is an answer too: the errors of the requests
// that follow explain it better.
func Reach(ctx context.Context, config *rest.Config) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("set up a client for %s: %w", config.Host, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	err = client.RESTClient().Get().AbsPath("/version").Do(ctx).Error()
	var status apierrors.APIStatus
	if err == nil || errors.As(err, &status) {
		return nil
	}
	if request, ok := errors.AsType[*url.Error](err); ok { // the URL is not what is wrong
		err = request.Err
	}
	return fmt.Errorf("cannot reach %s: %w", config.Host, err)
}
