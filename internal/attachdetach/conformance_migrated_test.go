package attachdetach

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"belay.dev/belay/internal/kube"
)

// gcePD is a volume of one of the seven in-tree plugins that are CSI drivers now.
const gcePD = "pd.csi.storage.gke.io"

func pd(name string) corev1.PersistentVolumeSource {
	return corev1.PersistentVolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: name, FSType: "ext4"}}
}

// pdHandle is the handle that csi-translation-lib gives to a disk without a zone.
func pdHandle(name string) string { return "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/" + name }

func migratedWithPod() scenario {
	var uid types.UID
	return prepared("Test_ADC_VolumeAttachmentRecovery/Scheduled Pod with migrated PV", func(l *lab) {
		l.readyNode("a")
		l.pvOf("pv1", pd("vol1-"+l.prefix))
		l.pod("p", "a", "pv1")
		uid = l.makeAttachment(gcePD, pdHandle("vol1-"+l.prefix), "a", l.name("pv1")).UID
		l.lists("a", kube.UniqueVolumeName(gcePD, pdHandle("vol1-"+l.prefix)))
	}, func(l *lab) {
		l.awaitAt(gcePD, pdHandle("vol1-"+l.prefix), "a")
		l.settled("a")
		l.mu.Lock()
		defer l.mu.Unlock()
		if va := l.at(gcePD, pdHandle("vol1-"+l.prefix), "a"); va == nil || va.UID != uid {
			l.Error("the attachment was not taken over")
		}
		if l.reports("a", "kubernetes.io/gce-pd/vol1-"+l.prefix) {
			l.Error("reported by the in-tree plugin's name")
		}
	})
}

func migratedWithoutPod() scenario {
	return prepared("Test_ADC_VolumeAttachmentRecovery/Deleted Pod with migrated PV", func(l *lab) {
		l.readyNode("a")
		l.pvOf("pv1", pd("vol2-"+l.prefix))
		va := l.makeAttachment(gcePD, pdHandle("vol2-"+l.prefix), "a", l.name("pv1"))
		l.await("seen", func() bool { return l.vas[va.Name] != nil })
	}, func(l *lab) {
		l.awaitNotAt(gcePD, pdHandle("vol2-"+l.prefix), "a")
	})
}

// inlineMigrated: the attachment of an in-tree volume in a pod has the translated
// PersistentVolume in its own source.
func inlineMigrated(l *lab) {
	l.readyNode("a")
	disk := "inline-" + l.prefix
	l.podOf("p", "a", corev1.Volume{VolumeSource: corev1.VolumeSource{
		GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: disk, FSType: "ext4"},
	}})
	l.awaitAt(gcePD, pdHandle(disk), "a")
	l.mu.Lock()
	va := l.at(gcePD, pdHandle(disk), "a")
	l.mu.Unlock()
	spec := va.Spec.Source.InlineVolumeSpec
	if va.Spec.Source.PersistentVolumeName != nil || spec == nil || spec.CSI == nil {
		l.Fatalf("source %+v, want an inline volume spec", va.Spec.Source)
	}
	if c := spec.CSI; c.Driver != gcePD || c.VolumeHandle != pdHandle(disk) || c.FSType != "ext4" || c.VolumeAttributes["partition"] != "" {
		l.Errorf("inline source %+v", c)
	}
	if m := spec.VolumeMode; m == nil || *m != corev1.PersistentVolumeFilesystem {
		l.Errorf("volume mode %v, want Filesystem", m)
	}
	if m := spec.AccessModes; len(m) != 1 || m[0] != corev1.ReadWriteOnce {
		l.Errorf("access modes %v, want ReadWriteOnce", m)
	}
	l.gone("p")
	l.awaitNotAt(gcePD, pdHandle(disk), "a")
}

func pvMigrated(l *lab) {
	l.readyNode("a")
	disk := "pv-" + l.prefix
	l.pvOf("v", pd(disk))
	l.pod("p", "a", "v")
	l.awaitAt(gcePD, pdHandle(disk), "a")
	l.mu.Lock()
	va := l.at(gcePD, pdHandle(disk), "a")
	l.mu.Unlock()
	if s := va.Spec.Source; s.PersistentVolumeName == nil || *s.PersistentVolumeName != l.name("v") || s.InlineVolumeSpec != nil {
		l.Errorf("source %+v, want the PersistentVolume", s)
	}
	l.gone("p")
	l.awaitNotAt(gcePD, pdHandle(disk), "a")
}

// csiNodeMissing: no CSINode object is asked for: migration is complete.
func csiNodeMissing(l *lab) {
	pvMigrated(l)
	if err := l.Get(l.ctx, keyOf(l.name("a")), &storagev1.CSINode{}); !apierrors.IsNotFound(err) {
		l.Errorf("the node has a CSINode, want none (%v)", err)
	}
}

// migratedCases are those of in-tree volumes, by way of csi-translation-lib.
func migratedCases() []scenario {
	return []scenario{
		migratedWithPod(),
		migratedWithoutPod(),
		play("Test_CreateVolumeSpec/inline volume type that supports csi migration", inlineMigrated),
		play("Test_CreateVolumeSpec/pv type that supports csi migration", pvMigrated),
		play("Test_CreateVolumeSpec/CSINode not found for a volume type that completes csi migration", csiNodeMissing),
	}
}
