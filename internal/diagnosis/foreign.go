package diagnosis

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/explain"
	"belay.dev/belay/internal/redact"
)

// name matches what may be the name of an object.
var name = regexp.MustCompile(`[a-zA-Z0-9](?:[-a-zA-Z0-9._]*[a-zA-Z0-9])?`)

// hiddenName stands for a name of a namespace that the reader may not read.
const hiddenName = "(hidden)"

// qualified matches "namespace/name".
var qualified = regexp.MustCompile(name.String() + "/" + name.String())

// foreign returns a text of another component on one line, without what looks like a secret, and without the names from namespaces that the reader may not read: an error
// of a driver or an event may contain any. It hides what the snapshot has from such a namespace, and what the text itself says is in
// one.
func (x *state) foreign(text string) string { return oneLine(x.hide(redact.Secrets(text))) }

// foreignOf is foreign for the message of a FenceSource's condition. In the command that binds its Secret, the names of its own Secrets stay: who reads the FenceSource
// reads them in it, and without them the command cannot be copied.
func (x *state) foreignOf(source *fencingv1.FenceSource, reason, text string) string {
	if reason != string(explain.SecretNotBound) {
		return x.foreign(text)
	}
	own := map[string]bool{}
	for _, ref := range secretsOf(source) {
		own[ref.Namespace], own[ref.Name], own[ref.Namespace+"/"+ref.Name] = true, true, true
	}
	return oneLine(x.hideBut(redact.Secrets(text), own))
}

func (x *state) hide(text string) string { return x.hideBut(text, nil) }

func (x *state) hideBut(text string, own map[string]bool) string {
	if len(x.hidden) == 0 {
		return text
	}
	hide := func(word string) string {
		if x.hidden[word] && !own[word] {
			return hiddenName
		}
		return word
	}
	text = qualified.ReplaceAllStringFunc(text, func(pair string) string {
		if namespace, _, _ := strings.Cut(pair, "/"); x.hidden[namespace] && !own[pair] {
			return hiddenName
		}
		return pair
	})
	return name.ReplaceAllStringFunc(text, hide)
}

// hiddenNames collects the names that the snapshot has from namespaces that the reader may not read.
func (x *state) hiddenNames() map[string]bool {
	names := map[string]bool{}
	hide := func(namespace, name string) {
		if !x.mayName(namespace) {
			names[namespace], names[name] = true, true
		}
	}
	for _, pv := range x.Volumes {
		if ref := pv.Spec.ClaimRef; ref != nil {
			hide(ref.Namespace, ref.Name)
		}
		csi := pv.Spec.CSI
		if csi == nil {
			continue
		}
		for _, ref := range []*corev1.SecretReference{
			csi.ControllerPublishSecretRef, csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.ControllerExpandSecretRef, csi.NodeExpandSecretRef,
		} {
			if ref != nil {
				hide(ref.Namespace, ref.Name)
			}
		}
	}
	for _, ref := range x.switchSecrets() {
		hide(ref.Namespace, ref.Name)
	}
	for _, pod := range x.Pods {
		hide(pod.Namespace, pod.Name)
	}
	for _, claim := range x.Claims {
		hide(claim.Namespace, claim.Name)
	}
	for _, lease := range slices.Concat(x.Leases, x.OtherLeases) {
		if lease.Namespace != corev1.NamespaceNodeLease && lease.Namespace != "kube-system" {
			hide(lease.Namespace, leaseHolder(lease))
		}
	}
	delete(names, "")
	return names
}

// switchSecrets are the Secrets of power switches.
func (x *state) switchSecrets() (refs []*fencingv1.SecretReference) {
	for _, source := range x.FenceSources {
		refs = append(refs, secretsOf(source)...)
	}
	return refs
}

func secretsOf(source *fencingv1.FenceSource) (refs []*fencingv1.SecretReference) {
	for _, level := range source.Spec.Levels {
		for _, feed := range level.Feeds {
			if feed.SecretRef != nil {
				refs = append(refs, feed.SecretRef)
			}
		}
	}
	return refs
}
