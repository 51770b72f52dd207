// Command karpenter says where Karpenter's provisioner places pods with claims. It reads a question as JSON from standard input: the
// objects of a cluster, as its API server gives them. For each claim that no pod has reserved there is a pod with the claim's name.
// The decision is the provisioner's own simulation; the API server behind it and the cloud provider are fakes. The cloud provider
// has one instance type, whose nodes are large and have the devices of the question's template.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"unique"

	"github.com/awslabs/operatorpkg/object"
	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/test/v1alpha1"
)

const (
	instanceType = "large"
	nodePool     = "all"
	zone         = "zone"
)

type question struct {
	// Flags of Karpenter, such as --ignore-dra-requests=false.
	Flags []string `json:"flags"`
	// What is in the cluster.
	Nodes   []corev1.Node              `json:"nodes"`
	Slices  []resourcev1.ResourceSlice `json:"slices"`
	Classes []resourcev1.DeviceClass   `json:"classes"`
	Claims  []resourcev1.ResourceClaim `json:"claims"`
	// Pending pods that have no claim among the claims.
	Pods []corev1.Pod `json:"pods"`
	// The slices that the instance type declares.
	Template []resourcev1.ResourceSlice `json:"template"`
	// Labels of the NodePool's nodes.
	Labels map[string]string `json:"labels"`
}

type answer struct {
	// The pods that are placed on each node in the cluster.
	Existing map[string][]string `json:"existing"`
	// The pods that are placed on new nodes, node by node.
	New [][]string `json:"new"`
	// The pods that are placed nowhere, each with Karpenter's reason.
	Refused map[string]string `json:"refused"`
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var asked question
	if err := json.Unmarshal(input, &asked); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	found, err := ask(ctx, asked)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func ask(ctx context.Context, asked question) (*answer, error) {
	flags := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	parsed := &options.Options{}
	parsed.AddFlags(flags)
	if err := parsed.Parse(flags, asked.Flags...); err != nil {
		return nil, err
	}
	ctx = parsed.ToContext(ctx)

	objects, pods := []client.Object{pool(asked.Labels)}, []*corev1.Pod{}
	for i := range asked.Pods {
		pods = append(pods, &asked.Pods[i])
	}
	for i := range asked.Slices {
		objects = append(objects, &asked.Slices[i])
	}
	for i := range asked.Classes {
		objects = append(objects, &asked.Classes[i])
	}
	for i := range asked.Claims {
		claim := &asked.Claims[i]
		objects = append(objects, claim)
		if len(claim.Status.ReservedFor) == 0 {
			pods = append(pods, pod(claim, i))
		}
	}
	apiServer := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(pod client.Object) []string {
			return []string{pod.(*corev1.Pod).Spec.NodeName}
		}).Build()

	provider := &cloud{template: asked.Template}
	cluster := state.NewCluster(clock.RealClock{}, apiServer, provider)
	for i := range asked.Nodes {
		if err := cluster.UpdateNode(ctx, &asked.Nodes[i]); err != nil {
			return nil, err
		}
	}
	allocated := deviceallocation.NewController(apiServer)
	allocated.Hydrate(ctx)
	recorder := events.NewRecorder(&record.FakeRecorder{})
	provisioner := provisioning.NewProvisioner(
		apiServer, recorder, provider, cluster, clock.RealClock{}, allocated, nil)
	scheduler, err := provisioner.NewScheduler(ctx, pods, cluster.DeepCopyNodes().Active(), nil)
	if err != nil {
		return nil, err
	}
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		return nil, err
	}

	found := &answer{Existing: map[string][]string{}, New: [][]string{}, Refused: map[string]string{}}
	for _, node := range results.ExistingNodes {
		found.Existing[node.Name()] = names(node.Pods)
	}
	for _, node := range results.NewNodeClaims {
		found.New = append(found.New, names(node.Pods))
	}
	for pod, err := range results.PodErrors {
		found.Refused[pod.Name] = err.Error()
	}
	return found, nil
}

// pod returns a pod that is named like the claim it needs. Pods are placed in the order of their UIDs.
func pod(claim *resourcev1.ResourceClaim, place int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: claim.Namespace,
			Name:      claim.Name,
			UID:       types.UID(fmt.Sprintf("%08d", place)),
		},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "claim", ResourceClaimName: &claim.Name}},
			Containers: []corev1.Container{{
				Name:      "main",
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "claim"}}},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func names(pods []*corev1.Pod) []string {
	names := []string{}
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

func pool(labels map[string]string) *v1.NodePool {
	class := object.GVK(&v1alpha1.TestNodeClass{})
	made := &v1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: nodePool}}
	made.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{Group: class.Group, Kind: class.Kind, Name: "default"}
	made.Spec.Template.Labels = labels
	made.StatusConditions().SetTrue(v1.ConditionTypeValidationSucceeded)
	made.StatusConditions().SetTrue(v1.ConditionTypeNodeClassReady)
	return made
}

// cloud is a provider with one instance type. The scheduler's simulation asks it for nothing else.
type cloud struct {
	cloudprovider.CloudProvider
	template []resourcev1.ResourceSlice
}

func (c *cloud) Name() string { return "fake" }

func (c *cloud) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.TestNodeClass{}}
}

func (c *cloud) GetInstanceTypes(context.Context, *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	is := func(label, value string) *scheduling.Requirement {
		return scheduling.NewRequirement(label, corev1.NodeSelectorOpIn, value)
	}
	offered := []*scheduling.Requirement{is(corev1.LabelTopologyZone, zone), is(v1.CapacityTypeLabelKey, v1.CapacityTypeOnDemand)}
	return []*cloudprovider.InstanceType{{
		Name: instanceType,
		Requirements: scheduling.NewRequirements(append(offered, is(corev1.LabelInstanceTypeStable, instanceType),
			is(corev1.LabelArchStable, "amd64"), is(corev1.LabelOSStable, "linux"))...),
		Offerings: cloudprovider.Offerings{{Requirements: scheduling.NewRequirements(offered...), Price: 1, Available: true}},
		Capacity: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("100"),
			corev1.ResourceMemory: resource.MustParse("100Gi"),
			corev1.ResourcePods:   resource.MustParse("10000"),
		},
		Overhead:         &cloudprovider.InstanceTypeOverhead{},
		DynamicResources: cloudprovider.DynamicResources{ResourceSliceTemplates: templates(c.template)},
	}}, nil
}

// templates returns the slices as a cloud provider declares them; what has no field there is lost, such as taints.
func templates(slices []resourcev1.ResourceSlice) []*cloudprovider.ResourceSliceTemplate {
	made := []*cloudprovider.ResourceSliceTemplate{}
	for i := range slices {
		devices := []cloudprovider.Device{}
		for _, device := range slices[i].Spec.Devices {
			devices = append(devices, cloudprovider.Device{
				Name:                     unique.Make(device.Name),
				Attributes:               device.Attributes,
				Capacity:                 device.Capacity,
				AllowMultipleAllocations: device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations,
				ConsumesCounters:         device.ConsumesCounters,
			})
		}
		made = append(made, &cloudprovider.ResourceSliceTemplate{
			Driver:         unique.Make(slices[i].Spec.Driver),
			Pool:           cloudprovider.ResourcePool{Name: unique.Make(slices[i].Spec.Pool.Name)},
			Devices:        devices,
			SharedCounters: slices[i].Spec.SharedCounters,
		})
	}
	return made
}
