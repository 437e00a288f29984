package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/diagnosis"
)

// store serves pods in pages of three. A page fails as the function says.
type shelf struct {
	pods  []string
	fail  func(call int, o metav1.ListOptions) error
	calls int
}

func (s *shelf) list(_ context.Context, o metav1.ListOptions, use func(*corev1.Pod)) (next string, err error) {
	s.calls++
	if err := s.fail(s.calls, o); err != nil {
		return "", err
	}
	from, _ := strconv.Atoi(o.Continue)
	to := len(s.pods)
	if o.Limit > 0 && from+3 < to {
		to = from + 3
		next = strconv.Itoa(to)
	}
	for _, name := range s.pods[from:to] {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		use(&pod)
	}
	return next, nil
}

func names(pods []*corev1.Pod) []string {
	var found []string
	for _, pod := range pods {
		found = append(found, pod.Name)
	}
	return found
}

// TestExpiredPages: a list whose pages expire is read from its beginning, in the end in one request, and has each object once.
func TestExpiredPages(t *testing.T) {
	expired := apierrors.NewResourceExpired("the continue token is too old")
	all := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for name, test := range map[string]struct {
		fail  func(call int, o metav1.ListOptions) error
		read  bool
		calls int
		want  []string
	}{
		"none":                  {func(int, metav1.ListOptions) error { return nil }, true, 3, all},
		"second page, once":     {failAt(expired, 2), true, 5, all},
		"last page, twice":      {failAt(expired, 3, 6), true, 7, all},
		"each page but a first": {func(_ int, o metav1.ListOptions) error { return when(o.Continue != "", expired) }, true, 5, all},
		"always":                {func(int, metav1.ListOptions) error { return expired }, false, 3, nil},
		"another error":         {failAt(errors.New("broken"), 2), false, 2, all[:3]},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{pods: all, fail: test.fail}
			r := (&Reader{}).start()
			read := list(t.Context(), r, diagnosis.Ref{Resource: diagnosis.Pods}, metav1.ListOptions{}, s.list, r.keepPod)
			if got := names(r.into.Pods); read != test.read || s.calls != test.calls || !slices.Equal(got, test.want) {
				t.Errorf("read: %t in %d requests: %v; want %t in %d: %v", read, s.calls, got, test.read, test.calls, test.want)
			}
			if unread := len(r.into.Unread) > 0; unread == test.read {
				t.Errorf("what could not be read: %v", r.into.Unread)
			}
		})
	}
}

// TestPodOfTwoLists: a pod that two lists have is kept once.
func TestPodOfTwoLists(t *testing.T) {
	r := (&Reader{}).start()
	for range 2 {
		s := &shelf{pods: []string{"a", "b"}, fail: func(int, metav1.ListOptions) error { return nil }}
		list(t.Context(), r, diagnosis.Ref{Resource: diagnosis.Pods}, metav1.ListOptions{}, s.list, r.keepPod)
	}
	if got := fmt.Sprint(names(r.into.Pods)); got != "[a b]" {
		t.Errorf("pods: %s", got)
	}
}

func when(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

func failAt(err error, calls ...int) func(int, metav1.ListOptions) error {
	return func(call int, _ metav1.ListOptions) error { return when(slices.Contains(calls, call), err) }
}
