// Package informer passes the changes of objects from informers to functions.
package informer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// OnChange calls changed with the versions before and after each change; none is the zero value where there is none. An object that
// was deleted and created again under its name while the watch was broken comes from the informer as an update: it is one that has
// gone and one that has come.
func OnChange[T interface {
	comparable
	metav1.Object
}](informer cache.SharedIndexInformer, changed func(before, after T)) (cache.ResourceEventHandlerRegistration, error) {
	var none T
	return informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(none, object.(T)) },
		UpdateFunc: func(was, is any) {
			before, after := was.(T), is.(T)
			if before.GetUID() != after.GetUID() {
				changed(before, none)
				before = none
			}
			changed(before, after)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			changed(object.(T), none)
		},
	})
}
