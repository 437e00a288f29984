package node_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"belay.dev/belay/node"
)

// An agent that serves the pods that the API binds to its node.
func ExampleAgent_FollowPods() {
	agent, err := node.New(node.Config{NodeName: "edge-1", RESTConfig: &rest.Config{Host: "https://api.example.com"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer agent.Close()
	ctx := context.Background()
	go func() {
		if err := agent.FollowPods(ctx); err != nil {
			fmt.Println(err)
		}
	}()
	if err := agent.Run(ctx); err != nil {
		fmt.Println(err)
		return
	}
}

// "Never" and "not yet" are different errors.
func ExampleAgent_WaitMounted() {
	var agent *node.Agent
	var pod *corev1.Pod

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	mounts, err := agent.WaitMounted(ctx, pod.UID)
	if refused, ok := errors.AsType[*node.RefusedError](err); ok {
		fmt.Println("fail the pod:", refused)
	} else if wait, ok := errors.AsType[*node.WaitError](err); ok {
		for _, volume := range wait.Volumes {
			fmt.Println(volume.Volume, "waits for", volume.Reason, "since", volume.Since)
		}
	}
	for _, m := range mounts {
		fmt.Println(m.VolumeName, "is at", m.Path)
	}
}

// A volumeMount with a subPath.
func ExampleAgent_MountSubPath() {
	var agent *node.Agent
	var pod *corev1.Pod

	for _, container := range pod.Spec.Containers {
		for i, use := range container.VolumeMounts {
			if use.SubPath == "" {
				continue
			}
			path, err := agent.MountSubPath(pod.UID, node.SubPath{
				Volume: use.Name, Container: container.Name, MountIndex: i, Path: use.SubPath, ReadOnly: use.ReadOnly,
			})
			if errors.Is(err, node.ErrSubPathOutsideVolume) {
				fmt.Println("fail the container:", err)
				continue
			}
			fmt.Println("bind", path, "to", use.MountPath)
		}
	}
}

// A host that runs pods in virtual machines shares a directory, or passes a block volume through.
func ExampleMount_Source() {
	var m node.Mount

	source, err := m.Source()
	if err != nil {
		fmt.Println(err)
		return
	}
	if m.Block {
		fmt.Println("pass", source.Device)
	} else {
		fmt.Println("share", m.Path, "of type", source.FSType)
	}
}
