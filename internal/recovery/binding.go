package recovery

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/fenceagent"
	"belay.dev/belay/internal/kube"
)

var errUnbound = errors.New("the Secret does not allow it")

// unbound returns why a Secret is not sent where a feed says: who may write a FenceSource may not read the Secret by that. The error has the line to set.
func unbound(secret *corev1.Secret, feed fencingv1.Feed) error {
	options := map[string]string{}
	for key, value := range feed.Options {
		options[key] = string(value)
	}
	listed := strings.FieldsFunc(secret.Annotations[kube.AddressesAnnotation], func(r rune) bool { return r == ',' || r == ' ' || r == '\n' })
	b := fenceagent.Binding{Addresses: listed, Plain: secret.Annotations[kube.AllowPlainAnnotation] == "true"}
	missing := b.Missing(feed.Agent, options, secret.Data)
	annotate := "kubectl annotate secret -n " + secret.Namespace + " " + secret.Name + " --overwrite "
	switch {
	case len(missing.Addresses) > 0:
		return fmt.Errorf("%w: Secret %s/%s is not known to be for %s. If it is: %s%s=%s", errUnbound, secret.Namespace, secret.Name, strings.Join(missing.Addresses, " and "),
			annotate, kube.AddressesAnnotation, explain.ShellWord(strings.Join(slices.Concat(listed, missing.Addresses), ",")))
	case missing.Plain != "":
		return fmt.Errorf("%w: %s. If Secret %s/%s may be used so: %s%s=true", errUnbound, missing.Plain, secret.Namespace, secret.Name, annotate, kube.AllowPlainAnnotation)
	}
	return nil
}
