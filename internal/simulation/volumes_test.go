package simulation

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/kube"
)

const namespace = "default"

// disk is one volume at the storage.
type disk struct {
	handle string
	// exclusive is what must hold of it all the time.
	exclusive bool
}

// key is what the volume is called in the controller's queue.
func (d *disk) key() volumeKey {
	return volumeOf(d.handle)
}

// ofOther begins the name of a volume of the other driver. The driver itself calls it as the first one may call one of its own: the
// plane must not take the two for one volume.
const ofOther = "other/"

// volumeOf is what the plane calls a volume.
func volumeOf(handle string) volumeKey {
	if handle == fibre {
		return volumeKey{Driver: kube.FibreChannelPlugin, Handle: fibre}
	}
	if own, ok := strings.CutPrefix(handle, ofOther); ok {
		return volumeKey{Driver: otherDriver, Handle: own}
	}
	return volumeKey{Driver: driverName, Handle: handle}
}

// handleOf is the inverse of volumeOf.
func handleOf(key volumeKey) string {
	if key.Driver == otherDriver {
		return ofOther + key.Handle
	}
	return key.Handle
}

func attachmentName(handle, node string) string {
	key := volumeOf(handle)
	return kube.AttachmentName(key.Handle, key.Driver, node)
}

// slot is a PersistentVolume with its claim. They may be recreated under the same names for another disk.
type slot struct {
	volume, claim string
	mode          corev1.PersistentVolumeAccessMode
	disk          *disk // the one that it is for, or will be when it is made again
	other         *disk // that it may be made for as well, nil for none
}

var (
	once = corev1.ReadWriteOnce
	many = corev1.ReadWriteMany
)

// fibre is what a Fibre Channel volume is called. It has no VolumeAttachment.
const fibre = "[50]:1"

// drawDisks chooses the volumes of a seed.
func (s *sim) drawDisks() {
	type volume struct {
		handle string
		modes  []corev1.PersistentVolumeAccessMode
	}
	all := []volume{
		{"a^1", []corev1.PersistentVolumeAccessMode{once}},
		{"twin", []corev1.PersistentVolumeAccessMode{once, many}},
		{fibre, []corev1.PersistentVolumeAccessMode{once}},
		{"shared", []corev1.PersistentVolumeAccessMode{many}},
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	chosen := all[:1+s.rng.IntN(2)]
	if len(s.drivers) > 1 {
		ofBoth := slices.DeleteFunc(slices.Clone(all), func(one volume) bool { return one.handle == fibre })
		s.rng.Shuffle(len(ofBoth), func(i, j int) { ofBoth[i], ofBoth[j] = ofBoth[j], ofBoth[i] })
		for _, one := range ofBoth[:1+s.rng.IntN(3)/2] {
			chosen = append(slices.Clone(chosen), volume{ofOther + one.handle, one.modes})
		}
	}
	for _, one := range chosen {
		d := &disk{handle: one.handle, exclusive: slices.Contains(one.modes, once)}
		s.disks = append(s.disks, d)
		var other *disk
		if s.remakes && len(one.modes) == 1 && d.handle != fibre {
			key := d.key()
			key.Handle = "next-" + key.Handle
			other = &disk{handle: handleOf(key), exclusive: d.exclusive}
			s.disks = append(s.disks, other)
		}
		for i, mode := range one.modes {
			s.slots = append(s.slots, &slot{
				volume: fmt.Sprintf("pv-%s-%d", d.handle, i), claim: fmt.Sprintf("claim-%s-%d", d.handle, i), mode: mode, disk: d, other: other,
			})
		}
	}
	slices.SortFunc(s.disks, func(a, b *disk) int { return len(b.handle) - len(a.handle) })
}

// objects are what an administrator creates, in an order that the seed chooses. Of two PersistentVolumes that share a handle the
// one that makes it exclusive comes first: a volume that turns exclusive after it was attached to two nodes is no fault of the
// plane.
func (s *sim) objects() [][]client.Object {
	var made [][]client.Object
	for _, d := range s.drivers {
		made = append(made, []client.Object{&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: d.name}}})
	}
	for _, d := range s.disks {
		var group []client.Object
		for _, slot := range s.slots {
			if slot.disk == d {
				group = append(group, slot.persistentVolume())
			}
		}
		made = append(made, group)
	}
	s.rng.Shuffle(len(made), func(i, j int) { made[i], made[j] = made[j], made[i] })
	return made
}

func (o *slot) persistentVolume() *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.volume}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{o.mode}
	if o.disk.handle == fibre {
		pv.Spec.FC = &corev1.FCVolumeSource{TargetWWNs: []string{"50"}, Lun: new(int32(1))}
	} else {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: o.disk.key().Driver, VolumeHandle: o.disk.key().Handle}
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: o.claim}
	return pv
}

// slotOf is a PersistentVolume that the disk has now.
func (s *sim) slotOf(d *disk) *slot {
	i := slices.IndexFunc(s.slots, func(o *slot) bool { return o.disk == d })
	if i < 0 {
		return nil
	}
	return s.slots[i]
}

// slotToRemake is rather one with an attachment that does not record its volume yet: only what the attachment says of itself tells then
// that it is not for the new one.
func (s *sim) slotToRemake() *slot {
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		name, recorded := va.Spec.Source.PersistentVolumeName, va.Annotations[kube.PublishedHandleAnnotation] != ""
		i := slices.IndexFunc(s.slots, func(o *slot) bool { return o.other != nil && name != nil && o.volume == *name })
		if i >= 0 && !recorded && s.chance(70) {
			return s.slots[i]
		}
	}
	return s.slots[s.rng.IntN(len(s.slots))]
}

// remake recreates a PersistentVolume and its claim under their names, mostly for another disk, as from a backup, in two steps. The
// first deletes them normally, or by force: then the finalizers have no effect.
func (s *sim) remake(o *slot) {
	pv, exists := get[*corev1.PersistentVolume](s.api, o.volume)
	byHand := func(va *storagev1.VolumeAttachment) bool { return s.byHand[va.Name] != nil }
	switch {
	case o.other == nil && o.disk.handle != fibre: // a shared handle: its modes may not change
	case len(s.missing) > 0 || exists && slices.ContainsFunc(list[*storagev1.VolumeAttachment](s.api), byHand):
	case !exists:
		s.makeSlot(o)
	case pv.DeletionTimestamp != nil && s.chance(80):
	case s.chance(50):
		s.say("a person deletes %s", o.volume)
		_ = s.api.remove(nil, nil, volumes, o.volume, nil)
		s.unbind(o)
	default:
		s.say("a person deletes %s by force", o.volume)
		s.api.drop(pv)
		s.remade[o.disk], s.remade[o.other] = true, true
		s.unbind(o)
		if s.chance(60) {
			s.makeSlot(o)
		}
	}
}

// share deletes, for good, the PersistentVolume that makes a shared handle exclusive, and all
// who use it.
func (s *sim) share() (did bool) {
	i := slices.IndexFunc(s.slots, func(o *slot) bool {
		_, exists := get[*corev1.PersistentVolume](s.api, o.volume)
		return exists && o.mode == once && slices.ContainsFunc(s.slots, func(other *slot) bool { return other != o && other.disk == o.disk })
	})
	if i < 0 || len(s.missing) > 0 {
		return false
	}
	o := s.slots[i]
	s.slots = slices.Delete(s.slots, i, i+1)
	// What waits for another attachment of the volume no longer has to.
	for range 3 {
		s.attachByHand(o.disk)
		s.driverOf(o.disk).attacher.catchUp(true)
		s.settleDown()
		for len(s.net.waiting()) > 0 && s.broken == "" {
			s.serveOne()
		}
	}
	o.disk.exclusive = false
	s.say("a person deletes %s for good: %s is shared", o.volume, o.disk.handle)
	pv, _ := get[*corev1.PersistentVolume](s.api, o.volume)
	s.api.drop(pv)
	s.remade[o.disk] = true
	if claim, ok := get[*corev1.PersistentVolumeClaim](s.api, namespace+"/"+o.claim); ok {
		s.api.drop(claim)
	}
	for _, pod := range list[*corev1.Pod](s.api) {
		if slices.Contains(claimsOf(pod), o.claim) {
			s.api.drop(pod)
		}
	}
	return true
}

// unbind deletes the claim, and some of the pods.
func (s *sim) unbind(o *slot) {
	if claim, ok := get[*corev1.PersistentVolumeClaim](s.api, namespace+"/"+o.claim); ok {
		s.api.drop(claim)
	}
	for _, pod := range list[*corev1.Pod](s.api) {
		if slices.Contains(claimsOf(pod), o.claim) && s.chance(50) {
			s.say("pod %s on %s is deleted by force", pod.Name, pod.Spec.NodeName)
			s.api.drop(pod)
		}
	}
	if o.other != nil && s.chance(80) {
		o.disk, o.other = o.other, o.disk
	}
}

func (s *sim) makeSlot(o *slot) {
	pv := o.persistentVolume()
	if claim, ok := get[*corev1.PersistentVolumeClaim](s.api, namespace+"/"+o.claim); ok {
		s.api.drop(claim)
	}
	pv.Spec.ClaimRef.UID = s.makeClaim(pv).GetUID()
	s.mustCreate(pv)
	s.say("%s "+isMadeFor+" %s", o.volume, o.disk.handle)
	for _, va := range list[*storagev1.VolumeAttachment](s.api) {
		// What was attached under this name draws the pods to its node, and blocks them.
		if name := va.Spec.Source.PersistentVolumeName; name != nil && *name == o.volume && s.chance(60) {
			s.comePodTo(s.machines[va.Spec.NodeName], o.claim)
		}
	}
}

// completeSlots makes what was not made again yet.
func (s *sim) completeSlots() (did bool) {
	for _, o := range s.slots {
		if _, ok := get[*corev1.PersistentVolume](s.api, o.volume); !ok {
			s.makeSlot(o)
			did = true
		}
	}
	return did
}

// freshPods deletes the pods that run with another volume than they would get today.
func (s *sim) freshPods() {
	for _, pod := range list[*corev1.Pod](s.api) {
		if m := s.machines[pod.Spec.NodeName]; !slices.Equal(s.runsWith(m, pod), s.handlesOf(pod)) {
			s.say("pod %s on %s is deleted, its volume is another one now", pod.Name, m)
			s.api.drop(pod)
		}
	}
}

// administer makes the next objects.
func (s *sim) administer() (did bool) {
	if len(s.missing) == 0 {
		return false
	}
	for _, obj := range s.missing[0] {
		if pv, ok := obj.(*corev1.PersistentVolume); ok {
			pv.Spec.ClaimRef.UID = s.makeClaim(pv).GetUID()
		}
		s.mustCreate(obj)
		s.say("%s %s is made", kindOf(obj), obj.GetName())
	}
	s.missing = s.missing[1:]
	return true
}

func (s *sim) makeClaim(pv *corev1.PersistentVolume) client.Object {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pv.Spec.ClaimRef.Name}}
	claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
	return s.mustCreate(claim)
}

// mustCreate makes an object of a model whose name is free.
func (s *sim) mustCreate(obj client.Object) client.Object {
	made, err := s.api.create(nil, nil, obj)
	if err != nil {
		panic(err)
	}
	return made
}

// handlesOf are the volumes that a pod would get now for its claims, by what the API server stores.
func (s *sim) handlesOf(pod *corev1.Pod) (handles []string) {
	for _, claim := range claimsOf(pod) {
		handles = append(handles, boundTo(claim, s.stored(claims), s.stored(volumes)))
	}
	return handles
}

func (s *sim) stored(k kind) func(name string) client.Object {
	return func(name string) client.Object { return s.api.objects[k][name] }
}

// wantedAt reports whether a pod at the node should run with the volume.
func (s *sim) wantedAt(node, handle string) bool {
	return slices.ContainsFunc(list[*corev1.Pod](s.api), func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && slices.Contains(s.handlesOf(p), handle) && p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodSucceeded
	})
}

// diskOf is the volume of an attachment, by its name: what it says of itself may be missing,
// and its PersistentVolume another one.
func (s *sim) diskOf(va *storagev1.VolumeAttachment) *disk {
	if d := s.byHand[va.Name]; d != nil {
		// Its name says nothing: it is for the volume that its PersistentVolume had when the
		// attacher began.
		if handle, ok := va.Annotations[kube.PublishedHandleAnnotation]; ok {
			return s.disk(handleOf(volumeKey{Driver: va.Spec.Attacher, Handle: handle}))
		}
		return d
	}
	for _, d := range s.disks {
		if va.Name == attachmentName(d.handle, va.Spec.NodeName) {
			return d
		}
	}
	panic("an attachment without a volume: " + va.Name)
}
