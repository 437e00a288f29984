package kube

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The machine of a standby is suspended for an hour (a VM that is migrated, a laptop): the
// monotonic clock of Linux stands. It then leads, and dates a request; its successor is
// an hour ahead of it, and forces an hour early. invariants.md: "A new leader forces early by
// as much as the clock of its API server was ahead ... and by up to one second".
func TestSuspendedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leader, successor ServerClock
		date := time.Now().Truncate(time.Second)
		leader.Heed(date.UTC().Format(http.TimeFormat))
		// Suspended: time.Since does not move, the API server's clock does. The next answer
		// that either of them gets has this date.
		date = date.Add(time.Hour)
		leader.Heed(date.UTC().Format(http.TimeFormat))
		successor.Heed(date.UTC().Format(http.TimeFormat))
		if apart := successor.Now().Sub(leader.Now()); apart > time.Second {
			t.Errorf("two processes with the same API server are %v apart", apart)
		}
	})
}

// remade is a quorum read that comes between the end of an object and its successor of the
// same name (kubectl replace --force).
type remade struct {
	*quorum
	then func()
}

func (r remade) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := r.quorum.List(ctx, list, options...)
	r.then()
	return err
}

// A new leader reads a shared PersistentVolume while it does not exist for a moment. The
// cache then has its successor, newer than the read: there is nothing left to wait for. The
// leader waits for that object to go, and does nothing in the whole cluster meanwhile.
func TestConfirmOfARecreatedVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := cachetesting.NewFakeControllerSource()
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "first"}}
		source.Add(volume) // version 1
		informer := cached(t, &corev1.PersistentVolume{}, source)
		live := remade{&quorum{objects: map[string]string{}, version: "2"}, func() {
			source.Delete(volume)
			volume = volume.DeepCopy()
			volume.UID = "second"
			source.Add(volume)
			time.Sleep(time.Second)
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := Confirm(ctx, live, volumeKind, informer, []string{"v"}); err != nil {
			t.Errorf("after an hour: %v", err)
		}
	})
}
