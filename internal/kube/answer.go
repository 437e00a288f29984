package kube

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IsAnswer tells whether the error of a write is the API server's word that the write
// changed nothing. After any other error it may have been carried out, or still be.
func IsAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500 && !apierrors.IsTimeout(err)
}
